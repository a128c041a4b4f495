"""The sink: ``df.write`` and ``df.writeStream`` with ``format("rmq")``.

Read writer first: it holds the classes that Spark calls, and the steps of a write in order.
operations defines what each value of the option ``operation`` does. columns and values check rows.
exactly_once adds the exactly-once guarantee.
"""
