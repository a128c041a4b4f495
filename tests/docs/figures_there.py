"""The figures that are exported to Prometheus."""

import json
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from rmq_spark.metrics.listeners import ListenerCollector
from rmq_spark.metrics.queries import QueryMetrics
from rmq_spark.metrics.queues import QueueCollector
from rmq_spark.spark.source.backlog import backlog_figures


def figures_there(broker):
    """All families, once a message of a topic has died and a query has read it."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    broker.create("Orders", "FixedTime", 1, max_retries=0)
    broker.queue("Orders").send(["m"], fixed_time=0)
    with broker.consumer("Orders", "clerk") as clerk:
        clerk.poll().rollback()
    reported = backlog_figures(broker.queue("Orders").figures()) | {"slotsOwned": 1}
    source = SimpleNamespace(latestOffset=json.dumps({"topic": "Orders", **reported}))
    progress = SimpleNamespace(id="one", sources=[source], numInputRows=1, batchDuration=1)
    listener = broker.listen("Orders", "billing", print)
    registry.register(ListenerCollector(listener))
    metrics = QueryMetrics(registry)
    metrics.onQueryStarted(SimpleNamespace(id="one", name="one"))
    metrics.onQueryProgress(SimpleNamespace(progress=progress))
    return list(registry.collect())
