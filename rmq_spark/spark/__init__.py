"""The PySpark connector: source, sink, queues as tables, and each_message.

Read datasource first: it shows which class Spark gets for a read or a write. Each of the folders
source, sink, table and listener holds one of the four; the modules beside them are shared.
"""
