"""The command ``python -m rmq_spark.cli``, for systems where the script rmq is not on PATH."""

import sys

from rmq_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
