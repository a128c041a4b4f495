"""Requeue the dead messages of a topic; ``--help`` shows the options."""

from rmq_spark.jobs.program import run_job

run_job("requeue_dead")
