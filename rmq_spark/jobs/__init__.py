"""Jobs that move messages between topics and the formats that Spark reads and writes.

Read commands first: it lists the jobs, and runs one from its command line. The scripts in jobs/
start the jobs. program defines what a job is. send, relay_outbox, export, requeue_dead, expire and
report are one job each.

job_arguments, formats and chosen_topics add the arguments that jobs share. spool keeps the rows of
a named run of send. targets write the batches of an export; databases reaches a database through
JDBC, iceberg_tables a table of Iceberg, folders any file system. connectors checks what Spark has
loaded.
"""
