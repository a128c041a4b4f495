"""``each_message``: calls a function for every message of a micro-batch.

Read each_message first: it is the driver's part, and runs a Spark job for each batch. task is one
task of that job: it rolls back failed messages, and counts. runner keeps a child process beside the
Python worker, with time limits. child is that process, which calls the function.
"""
