"""The source: ``spark.readStream.format("rmq")``."""
