"""Send rows of whatever Spark reads to a topic; ``--help`` shows the options."""

from rmq_spark.jobs.program import run_job

run_job("send")
