"""The targets of an export: files, databases and other formats of Spark.

Read target first: it says what a batch is, and what every target does with it. spark_target writes
files and any other format of Spark, jdbc_target tables of databases, delta_target and
iceberg_target tables of Delta Lake and Iceberg, and kafka_target topics of Kafka. known_targets
chooses one by the arguments of the job. refusals finds the messages of a batch that a target can
never take, accepted_rows writes the others, checkpoint_log reads how far a query is, and
outbox_marks writes the results of the messages back to an outbox.
"""
