"""The figures that are exported to Prometheus."""

from prometheus_client import CollectorRegistry

from rmq_spark.metrics.queries import QueryMetrics
from rmq_spark.metrics.queues import QueueCollector


def figures_there(broker):
    """All families, once there is a topic."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    QueryMetrics(registry)
    broker.create("Orders", "FixedTime", 1)
    return list(registry.collect())
