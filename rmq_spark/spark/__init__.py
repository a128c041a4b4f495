"""The PySpark connector: the format ``rmq``, and each_message.

Read datasource first: it chooses the class that Spark gets for a read or a write.

- source consumes messages (``spark.readStream``).
- sink sends messages, and cancels, requeues, rolls back or purges them (``df.write``,
  ``df.writeStream``).
- tables shows queues as tables and consumes nothing (``spark.read``).
- listener calls a function for every message of a batch (each_message).

options and schemas define what a user gives and gets.
"""
