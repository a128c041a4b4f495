"""Figures of all topics, appended to a table. ``--help`` tells how."""

import sys

from rmq_spark.jobs.report import main

if __name__ == "__main__":
    sys.exit(main())
