"""The connector: PySpark on top of the queue."""
