"""What died in a topic comes back. ``--help`` tells how."""

import sys

from rmq_spark.jobs.requeue_dead import main

if __name__ == "__main__":
    sys.exit(main())
