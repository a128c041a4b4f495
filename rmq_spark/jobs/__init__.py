"""Jobs that move messages between topics and the formats that Spark reads and writes.

Read program first: it lists the jobs, defines what a job and its arguments are, and runs one.
send, relay_outbox, export, requeue_dead, expire and report are one job each; relay_outbox and
expire need no Spark. session holds a job's Spark session. targets write the batches of an export.
"""
