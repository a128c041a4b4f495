"""Whatever Spark reads into a topic. ``--help`` tells how."""

import sys

from rmq_spark.jobs.send import main

if __name__ == "__main__":
    sys.exit(main())
