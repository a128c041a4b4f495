"""The command ``python -m rmq_spark.cli``: runs rmq where its script is not on PATH."""

import sys

from rmq_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
