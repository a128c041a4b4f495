"""Servers for trials and tests: Redis, Redis Cluster, ZooKeeper, Spark.

Read redis_server first; the others are built like it.
"""
