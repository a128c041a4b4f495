"""Metrics of queues and queries for Prometheus. Needs prometheus-client: rmq-spark[metrics].

Read queues first; queries adds metrics of streaming queries.
"""
