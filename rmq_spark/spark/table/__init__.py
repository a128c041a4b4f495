"""Queues as tables: ``spark.read.format("rmq")`` with the option queue."""
