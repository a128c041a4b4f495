"""Jobs that move messages between topics and the formats that Spark reads and writes.

Read commands first: it lists the jobs, and runs one from its command line. The scripts in jobs/
start the jobs. program defines what a job is. send, relay_outbox, export, requeue_dead, expire and
report are one job each; relay_outbox and expire need no Spark.

job_arguments, formats and chosen_topics add the arguments that jobs share. session opens a job's
Spark session and checks what it has loaded. spool keeps the rows of a named run of send. targets
write the batches of an export; databases reaches a database through JDBC, iceberg_tables a table of
Iceberg.
"""
