"""Append the figures of all topics to a table; ``--help`` shows the options."""

from rmq_spark.jobs.program import run_job

run_job("report")
