"""``each_message``: calls a function for every message of a micro-batch.

Read each_message first (the driver), then message_task (an executor's task), message_runner (the
Python worker) and message_child (the process in which the function runs).
"""
