"""The sink: ``df.write`` and ``df.writeStream`` with ``format("rmq")``.

Read writers first: it holds the classes that Spark calls, and the steps of a write in order.
target_topics splits rows by topic, columns and delays check their values, and operations defines
what each value of the option ``operation`` does. arrow_pairs packs rows for the scripts.
exactly_once_writer adds the exactly-once guarantee, and validation a dry run.
"""
