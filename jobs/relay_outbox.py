"""Messages of a database's outbox into topics. ``--help`` tells how."""

import sys

from rmq_spark.jobs.outbox.relay_outbox import main

if __name__ == "__main__":
    sys.exit(main())
