"""The demo: a year of flights through Redis. ``make demo`` runs it."""

import sys

from jobs.flights.cli import main

if __name__ == "__main__":
    sys.exit(main())
