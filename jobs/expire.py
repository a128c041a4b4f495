"""What consumers hold that do not come back is given back. ``--help`` tells how."""

import sys

from rmq_spark.jobs.expire import main

if __name__ == "__main__":
    sys.exit(main())
