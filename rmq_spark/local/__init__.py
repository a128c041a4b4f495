"""Servers on one machine, for trials, notebooks and tests: Redis and ZooKeeper."""
