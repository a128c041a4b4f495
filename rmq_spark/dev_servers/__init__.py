"""Servers for trials and tests: Redis, Redis Cluster, ZooKeeper, Spark."""
