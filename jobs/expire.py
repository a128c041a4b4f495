"""Give back the messages of claims whose lease has ended; ``--help`` shows the options."""

from rmq_spark.jobs.program import run_job

run_job("expire")
