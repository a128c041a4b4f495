"""The sink: ``df.write`` and ``df.writeStream`` with ``format("rmq")``.

Read writers first: it holds the classes that Spark calls, and the steps of a write in order.
"""
