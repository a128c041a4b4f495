"""Jobs that move messages between topics and the formats that Spark reads and writes.

Read program first: it lists the jobs, defines what a job and its arguments are, and runs one.
send, relay_outbox and export are one job each; maintain has requeue_dead, expire and report. Only
relay_outbox and expire need no Spark. spark_session holds a job's Spark session. targets write the
batches of an export.
"""
