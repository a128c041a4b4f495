"""The sink: ``df.write`` and ``df.writeStream`` with ``format("rmq")``."""
