"""The readers for plain Python: consumer takes batches, listener calls a function for messages.

sessions begins a start of a reader. consumer_runs keeps the numbers of these starts, and
owned_slots says which slots a reader may claim. waiting and slot_waits let readers sleep until a
message falls due. batch and slot_work hold what was taken. The workers of a listener call its
function by callers, or in a child_process.
"""
