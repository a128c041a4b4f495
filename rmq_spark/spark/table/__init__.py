"""Queues as tables: ``spark.read.format("rmq")`` with the option queue. Consumes nothing.

Read table_reader first: it turns pages of a queue into rows.
"""
