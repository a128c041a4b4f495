"""``each_message``: calls a function for every message of a micro-batch.

Read each_message first: it is the driver's part, and runs a Spark job for each batch. message_task
is one task of that job, and rolls back failed messages. message_runner keeps a child process beside
the Python worker, with time limits. message_child is that process, which calls the function.
traced_calls makes OpenTelemetry's spans of these calls. batch_counts brings the counts of tasks to
the driver, even of tasks that Spark kills.
"""
