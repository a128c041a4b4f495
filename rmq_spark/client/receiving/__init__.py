"""The readers for plain Python: consumer takes batches, listener calls a function for messages.

session begins a start of a reader, says which slots it may claim, and makes its requests. schedule
lets readers sleep until a message falls due. slot_claims holds what a listener has taken; its
workers call its function by callers, or in a child_process, and note its timings. work_in_process
lets a suspect message be alone in its process.
"""
