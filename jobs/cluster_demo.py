"""The demo on clusters of Redis, ZooKeeper and Spark. ``make cluster-demo`` runs it."""

import sys

from jobs.flights.clusters import main

if __name__ == "__main__":
    sys.exit(main())
