"""The command ``python -m rmq_spark``, the same as ``rmq``."""

import sys

from rmq_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
