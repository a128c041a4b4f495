"""Metrics of a listener of this program."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rmq_spark.client.receiving.listener import Listener
from rmq_spark.topics.definition import group_text

_LABELS = ("topic", "group", "listener")


class ListenerCollector(Collector):
    """A collector for prometheus-client, which reads the counts of a listener when it is asked.

    Register it with ``prometheus_client.REGISTRY.register(ListenerCollector(listener))``.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        """Yield one metric after another."""
        listener = self._listener
        values = [listener.topic, group_text(listener.group), listener.name]
        messages = CounterMetricFamily(
            "rmq_listener_messages",
            "Messages for which the function was called",
            labels=[*_LABELS, "outcome"],
        )
        counts = listener.succeeded, listener.failed, listener.left_alone
        for outcome, count in zip(("succeeded", "failed", "left_alone"), counts, strict=True):
            messages.add_metric([*values, outcome], count)
        yield messages
        at_work = GaugeMetricFamily(
            "rmq_listener_workers_at_work", "Workers that have messages", labels=_LABELS
        )
        at_work.add_metric(values, listener.at_work)
        yield at_work
