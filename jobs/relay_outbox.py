"""Relay messages from a database's outbox to topics; ``--help`` shows the options."""

from rmq_spark.jobs.program import run_job

run_job("relay_outbox")
