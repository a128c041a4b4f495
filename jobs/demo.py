"""The demo: a year of flights through Redis. ``make demo`` runs it."""

import sys

from rmq_spark.demo.cli import main

if __name__ == "__main__":
    sys.exit(main())
