"""Metrics for Prometheus: of all queues on a server, counted when it asks, and of a listener."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rmq_spark.client import schedules
from rmq_spark.client.broker import Broker
from rmq_spark.client.receiving.listener import Counts
from rmq_spark.client.receiving.listener_settings import place_of
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.client.service import Service
from rmq_spark.errors import RmqError, ServerUnsuitable, cannot_listen
from rmq_spark.inspect.figures import Row, Shared, look
from rmq_spark.redis.server import NO_EVICTION
from rmq_spark.topics.definition import group_text
from rmq_spark.topics.reasons import printable

_log = logging.getLogger(__name__)

_OF_LISTENER = ("topic", "group", "listener", "function")
# Of each group: the kind of metric, its name and meaning, one more label or none, and the numbers
# by the values of that label.
_FIGURES: tuple[tuple[Any, str, str, str, Callable[[Row], Mapping[str, float]]], ...] = (
    (
        GaugeMetricFamily,
        "rmq_messages",
        "Messages in a queue",
        "queue",
        lambda row: {name: queue.count for name, queue in row.figures.queues.items()},
    ),
    (
        CounterMetricFamily,
        "rmq_events",
        "What happened to messages, by what it was",
        "event",
        lambda row: row.figures.counters,
    ),
    (
        CounterMetricFamily,
        "rmq_deaths",
        "Messages that died, by class of the reason",
        "reason",
        lambda row: row.figures.deaths,
    ),
    (
        GaugeMetricFamily,
        "rmq_due_messages",
        "Messages that are due",
        "",
        lambda row: {"": row.due},
    ),
    (
        GaugeMetricFamily,
        "rmq_oldest_due_seconds",
        "For how long the oldest message has been due",
        "",
        lambda row: {"": (row.oldest_age_ms or 0) / 1000},
    ),
    (
        GaugeMetricFamily,
        "rmq_paused",
        "Whether delivery is paused",
        "",
        lambda row: {"": int(row.queue.is_paused)},
    ),
    (
        GaugeMetricFamily,
        "rmq_held_seconds",
        "For how long a hold or the rate limit keeps back what is due",
        "",
        lambda row: {"": max(0, (row.held_until_ms or 0) - row.now_ms) / 1000},
    ),
    (
        GaugeMetricFamily,
        "rmq_limit_used_ratio",
        "The part of its share that waits in the fullest slot, of topics with such a limit",
        "unit",
        lambda row: row.used,
    ),
    (
        GaugeMetricFamily,
        "rmq_consumers",
        "Consumers that were seen within a minute",
        "",
        lambda row: {"": len(row.consumers)},
    ),
)


class QueueCollector(Collector):
    """A collector for prometheus-client. Register it, or pass it to ``serve``.

    connect: connects to Redis, on the first request. If Redis does not answer, rmq_up is 0 and the
    other metrics are left out. A queue whose keys cannot be read is left out; a warning names it.
    """

    def __init__(self, connect: Callable[[], Broker]) -> None:
        self._connect = connect
        self._broker: Broker | None = None
        self._late: Metric | None = None
        self._evicts: bool | None = None
        self._look = Shared(self._look_now)

    def describe(self) -> list[Metric]:
        """Return no metrics, so that registering the collector does not call Redis."""
        return []

    def _look_now(self) -> list[Row] | None:
        try:
            self._broker = self._broker or self._connect()
            self._late = _lateness(self._broker)
            rows = look(self._broker, failed=self._warn)
            self._evicts = self._broker.server.policy != NO_EVICTION
            return rows
        except RmqError as error:
            _log.warning("rmq: no metrics of queues: %s", error)
            self._evicts = (isinstance(error, ServerUnsuitable) and error.evicts) or None
            return None

    def _warn(self, topic: str, group: str, error: RmqError) -> None:
        if self._broker is not None:
            self._broker.left_out(f"topic {topic}, group {group}", error)

    def collect(self) -> Iterator[Metric]:
        """Count all metrics now. Those who ask at the same time share one look at the topics."""
        rows = self._look.get()
        yield GaugeMetricFamily(
            "rmq_up", "Whether Redis answered, and can be used", value=int(rows is not None)
        )
        if self._evicts is not None:
            meaning = "Whether Redis evicts keys when it is full, as of the last minute"
            yield GaugeMetricFamily("rmq_redis_evicts", meaning, value=int(self._evicts))
        if rows is None:
            return
        if self._late is not None:
            yield self._late
        for family_of, name, meaning, label, values in _FIGURES:
            labels = ["topic", "group", label] if label else ["topic", "group"]
            family = family_of(name, meaning, labels=labels)
            for row in rows:
                for value, number in values(row).items():
                    of_row = (row.topic, row.group, printable(value))
                    family.add_metric(of_row[: len(labels)], number)
            yield family


def _lateness(broker: Broker) -> Metric:
    family = GaugeMetricFamily(
        "rmq_schedule_late_seconds",
        "For how long the next occurrence of a schedule has been due",
        labels=["schedule", "topic"],
    )
    try:
        for one in schedules.seen(broker):
            family.add_metric([one.schedule.name, one.schedule.topic], one.late_ms / 1000)
    except RmqError as error:
        _log.warning("rmq: no metrics of schedules: %s", error)
    return family


@contextmanager
def serve(
    collector: Collector, host: str, port: int, service: Service | None = None
) -> Iterator[int]:
    """Serve /metrics; of a service, /healthz and /readyz as well. Yields the port."""
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise cannot_listen(host, port, error) from None
    if service is not None:
        server.set_app(_with_health(server.get_app(), service))
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        thread.join()


def _with_health(metrics: Any, service: Service) -> Any:
    """Wrap a WSGI application, to answer a supervisor: 200, or 503 and what is wrong."""
    checks = {"/healthz": service.why_stuck, "/readyz": service.why_not_ready}

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        check = checks.get(environ["PATH_INFO"])
        if check is None:
            return metrics(environ, start_response)
        wrong = check()
        status = "503 Service Unavailable" if wrong else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{wrong or 'ok'}\n".encode()]

    return answer


def dashboard_json() -> str:
    """Read the dashboard for Grafana. Import it there and choose the data source."""
    return resources.files(__package__).joinpath("dashboard.json").read_text(encoding="utf-8")


class Timed(Protocol):
    """What each_message returns, which also counts messages by their outcome."""

    @property
    def name(self) -> str: ...

    def timings(self) -> Mapping[str, Timings]:
        """Return by topic how long the calls took until now, and how late they began."""


class ListenerCollector(Collector):
    """A collector for prometheus-client, which reads the counts of listeners when it is asked.

    Register it with ``prometheus_client.REGISTRY.register(ListenerCollector(listener))``.
    listeners: each a Listener, or an AsyncListener, which has no figures before it is open.
    """

    def __init__(self, *listeners: Counts) -> None:
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        by_values = [
            ([one.topic, group_text(one.group), one.name, place_of(one.function)], one)
            for one in (listener.opened for listener in self._listeners)
            if one is not None
        ]
        yield _messages("rmq_listener", _OF_LISTENER, by_values)
        timings = [(values, one.timings()) for values, one in by_values]
        yield from _histograms("rmq_listener", _OF_LISTENER, timings)
        at_work = GaugeMetricFamily(
            "rmq_listener_workers_at_work", "Workers that have messages", labels=_OF_LISTENER
        )
        for values, one in by_values:
            at_work.add_metric(values, one.at_work)
        yield at_work


class FunctionCollector(Collector):
    """A collector for prometheus-client, which reads the figures of ``each_message``.

    ::

        REGISTRY.register(FunctionCollector("billing", listener))

    query: its queryName. function: what ``each_message`` has returned.
    """

    def __init__(self, query: str, function: Timed) -> None:
        self._query = query
        self._function = function

    def collect(self) -> Iterator[Metric]:
        query, function = self._query, self._function
        by_values = [([query, function.name], function)]
        yield _messages("rmq_query_function", ("query", "function"), by_values)
        timings = [
            ([query, topic, function.name], timed) for topic, timed in function.timings().items()
        ]
        yield from _histograms("rmq_query_function", ("query", "topic", "function"), timings)


def _messages(
    prefix: str, labels: Sequence[str], by_values: Iterable[tuple[list[str], object]]
) -> Metric:
    messages = CounterMetricFamily(
        f"{prefix}_messages",
        "Messages for which the function was called",
        labels=[*labels, "outcome"],
    )
    for values, one in by_values:
        for outcome in ("succeeded", "failed", "snoozed", "left_alone"):
            messages.add_metric([*values, outcome], getattr(one, outcome))
    return messages


def _histograms(
    prefix: str, labels: Sequence[str], by_values: Iterable[tuple[list[str], Timings]]
) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        f"{prefix}_duration_seconds", "How long the calls of the function took", labels=labels
    )
    latenesses = HistogramMetricFamily(
        f"{prefix}_lateness_seconds",
        "How long after its due time the function was called, at the first delivery",
        labels=labels,
    )
    for values, timings in by_values:
        for family, timed in ((durations, timings.durations), (latenesses, timings.latenesses)):
            family.add_metric(values, timed.cumulative(), timed.sum)
    yield from (durations, latenesses)
