"""The command ``python -m rmq_spark.jobs NAME ...``, which runs a job."""

import sys

from rmq_spark.jobs.commands import main

if __name__ == "__main__":
    sys.exit(main())
