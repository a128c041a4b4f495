"""Export messages of topics to files and tables; ``--help`` shows the options."""

from rmq_spark.jobs.program import run_job

run_job("export")
