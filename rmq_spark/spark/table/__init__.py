"""Queues as tables: ``spark.read.format("rmq")`` with the option queue. Consumes nothing.

Read table_reader first: it turns pages of a queue into rows. selection adds the options that choose
queues, slots and times. catalog adds CREATE TABLE, whose options it stores in the schema.
"""
