"""Figures of queues and queries for Prometheus. Needs prometheus-client: rmq-spark[metrics]."""
