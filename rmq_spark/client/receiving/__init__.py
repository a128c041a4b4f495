"""The readers for plain Python: consumer takes batches, listener calls a function for messages.

sessions begins a start of a reader, and consumer_runs keeps the numbers of these starts. waiting
and slot_waits let readers sleep until a message falls due. batch and slot_work hold what was taken.
"""
