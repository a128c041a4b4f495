"""Metrics of all queues on a server, counted on every request of Prometheus."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rmq_spark.client.broker import Broker
from rmq_spark.client.overview import Row, look
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.topics.definition import group_text

_log = logging.getLogger(__name__)

_OF_GROUP = ["topic", "group"]


class QueueCollector(Collector):
    """A collector for prometheus-client. Register it, or pass it to ``serve``.

    connect: connects to Redis, on the first request. If Redis does not answer, rmq_up is 0 and the
    other metrics are left out. A queue whose keys cannot be read is left out; a warning names it.
    """

    def __init__(self, connect: Callable[[], Broker]) -> None:
        self._connect = connect
        self._broker: Broker | None = None

    def describe(self) -> list[Metric]:
        """Return no metrics, so that registering the collector does not call Redis."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Count all metrics now."""
        try:
            self._broker = self._broker or self._connect()
            rows = look(self._broker, failed=_warn_of)
        except RmqError as error:
            _log.warning("rmq: no metrics of queues: %s", error)
            yield _up(0)
            return
        yield _up(1)
        yield _messages(rows)
        yield _events(rows)
        yield _deaths(rows)
        yield _gauge(
            rows, "rmq_due_messages", "Messages that may be delivered now", lambda r: r.due
        )
        yield _gauge(
            rows,
            "rmq_oldest_due_seconds",
            "For how long the oldest message has been due",
            lambda row: (row.oldest_age_ms or 0) / 1000,
        )
        yield _gauge(
            rows,
            "rmq_consumers",
            "Consumers that were seen within a minute",
            lambda row: len(row.consumers),
        )


def _warn_of(queue: Queue, error: RmqError) -> None:
    topic, group = queue.definition.name, group_text(queue.keys.group)
    _log.warning("rmq: no metrics of topic %s, group %s: %s", topic, group, error)


def _up(value: int) -> GaugeMetricFamily:
    return GaugeMetricFamily("rmq_up", "Whether Redis answered", value=value)


def _messages(rows: list[Row]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("rmq_messages", "Messages in a queue", labels=[*_OF_GROUP, "queue"])
    for row in rows:
        for name, queue in row.figures.queues.items():
            family.add_metric([row.topic, row.group, name], queue.count)
    return family


def _events(rows: list[Row]) -> CounterMetricFamily:
    meaning = "What happened to messages, by what it was"
    return _counter(rows, "rmq_events", meaning, "event", lambda row: row.figures.counters)


def _deaths(rows: list[Row]) -> CounterMetricFamily:
    meaning = "Messages that died, by class of the reason"
    return _counter(rows, "rmq_deaths", meaning, "reason", lambda row: row.figures.deaths)


def _counter(
    rows: list[Row],
    name: str,
    meaning: str,
    label: str,
    counts: Callable[[Row], Mapping[str, int]],
) -> CounterMetricFamily:
    """Return a counter with one more label, whose values and numbers ``counts`` returns."""
    family = CounterMetricFamily(name, meaning, labels=[*_OF_GROUP, label])
    for row in rows:
        for value, count in counts(row).items():
            family.add_metric([row.topic, row.group, value], count)
    return family


def _gauge(
    rows: list[Row], name: str, meaning: str, value: Callable[[Row], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=_OF_GROUP)
    for row in rows:
        family.add_metric([row.topic, row.group], value(row))
    return family


@contextmanager
def serve(collector: Collector, host: str, port: int) -> Iterator[int]:
    """Serve the metrics at /metrics within the block; yields the port. Raises InvalidOption."""
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidOption(
            f"Cannot listen on {host}:{port} ({error.strerror}). Accepted: an address of this "
            "machine and a free port, or 0 for any."
        ) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        thread.join()


def dashboard_json() -> str:
    """Read the dashboard for Grafana. Import it there and choose the data source."""
    return resources.files(__package__).joinpath("dashboard.json").read_text(encoding="utf-8")
