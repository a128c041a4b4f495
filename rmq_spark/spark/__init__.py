"""The PySpark connector: the format ``rmq``, and each_message.

Read datasource first: it chooses the class that Spark gets for a read or a write. The folders hold
these classes, and each_message:

- source consumes messages (``spark.readStream``).
- sink sends messages, and cancels, requeues, rolls back or purges them (``df.write``,
  ``df.writeStream``).
- table shows queues as tables and consumes nothing (``spark.read``).
- listener calls a function for every message of a batch (each_message).

The folders share the other modules: options and schemas (what a user gives and gets), subscription
(the topics of a query), batch_limits and even_shares (the size of a batch), failure_cause and
garbage_collection.
"""
