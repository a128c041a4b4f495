"""The readers for plain Python: consumer takes a batch, listener calls a function for messages.

A listener is one thread, the dispatcher, which finds slots with due messages, and its workers, who
claim them (slot_claims) and call the function (callers), perhaps in a child_process, and note its
timings. What both readers need: consumer_run begins a run and makes its requests, waits lets a
reader sleep until a message falls due, and work_in_process lets a suspect message be alone.
"""
