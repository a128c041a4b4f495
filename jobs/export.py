"""Messages of a topic into files, tables and whatever else Spark writes. ``--help`` tells how."""

import sys

from rmq_spark.jobs.export import main

if __name__ == "__main__":
    sys.exit(main())
