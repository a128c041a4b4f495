"""Metrics of the streaming queries of this program that read rmq."""

import json
from contextlib import suppress
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from rmq_spark.protocol.claims import STATES
from rmq_spark.topics.reasons import printable

_LABELS = ("query", "topic")
# How many ended queries keep their counts, so that an alert still sees how the last ones ended.
MOST_ENDED = 100
# Seconds. A trigger costs Spark 0.2 s before it reads a row; a lease lasts 60 s by default.
_BUCKETS = (0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
# The keys by which to recognize the progress of an rmq source among those of other sources.
_MARK = {"due", "oldestDueMs"}


class QueryMetrics(StreamingQueryListener):
    """A listener that records the metrics of each query in a registry of prometheus-client.

    Add it with ``spark.streams.addListener(QueryMetrics())``, and serve the metrics from the same
    program with ``prometheus_client.start_http_server(port)``. The label ``query`` is the query's
    queryName, or its id if it has no name. The progress of other sources is ignored.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"rmq_query_{name}", meaning, (*_LABELS, *labels), registry=registry)

        self._active = Gauge("rmq_query_active", "Whether it runs", ("query",), registry=registry)
        self._failures = Counter(
            "rmq_query_failures", "How often it ended by an error", ("query",), registry=registry
        )
        self._received = Counter(
            "rmq_query_received", "Messages it has read", ("query",), registry=registry
        )
        self._batches = Histogram(
            "rmq_query_batch_seconds",
            "How long its batches took",
            ("query",),
            registry=registry,
            buckets=_BUCKETS,
        )
        self._messages = gauge("messages", "Messages of its topics, by state", "state")
        self._events = gauge("events", "What happened to messages of its topics", "event")
        self._lateness = gauge("lateness_seconds", "For how long the oldest message has been due")
        self._slots = gauge("slots_owned", "Slots it owns")
        self._names: dict[str, str] = {}  # by the id of the run: a query may start again at once
        self._ended: dict[str, None] = {}  # the names of queries that have ended, in order
        self._kept: dict[str, set[tuple[Gauge, tuple[str, ...]]]] = {}  # by query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        name = self._names[str(event.runId)] = printable(event.name or str(event.id))
        self._ended.pop(name, None)
        self._active.labels(name).set(1)
        self._failures.labels(name)  # 0, so that the first one is an increase

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = self._name(progress)
        ours = [
            (found, source.numInputRows)
            for source in progress.sources
            if (found := _figures(source.latestOffset))
        ]
        if not ours:
            return
        if progress.numInputRows:
            self._batches.labels(name).observe(progress.batchDuration / 1000)
        for figures, rows in ours:
            self._received.labels(name).inc(rows)
            for topic, of_topic in figures.items():
                self._note(name, topic, of_topic)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Set the due messages and the lateness of an idle query to 0."""
        for gauge, labels in self._kept.get(self._name(event), ()):
            if gauge is self._lateness or labels[2:] == ("due",):
                gauge.labels(*labels).set(0)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._name(event)
        self._names.pop(str(event.runId), None)
        if event.exception is not None:
            self._failures.labels(name).inc()
        if name in self._names.values():  # the query has started again meanwhile
            return
        self._active.labels(name).set(0)
        for gauge, labels in self._kept.pop(name, set()):  # nobody updates them any more
            gauge.remove(*labels)
        self._forget_long_ended(name)

    def _forget_long_ended(self, name: str) -> None:
        """Keep the counts of the last queries only: a driver may start any number of them."""
        self._ended.pop(name, None)
        self._ended[name] = None
        while len(self._ended) > MOST_ENDED:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            for metric in (self._active, self._failures, self._received, self._batches):
                with suppress(KeyError):
                    metric.remove(oldest)

    def _name(self, event: Any) -> str:
        return self._names.get(str(event.runId), str(event.id))

    def _note(self, name: str, topic: str, figures: dict[str, Any]) -> None:
        for state in STATES:
            self._set(self._messages, (name, topic, state), figures[state])
        for event, count in figures["counters"].items():
            self._set(self._events, (name, topic, event), count)
        oldest = figures["oldestDueMs"]
        late_s = 0.0 if oldest is None else max(0.0, (figures["asOfMs"] - oldest) / 1000)
        self._set(self._lateness, (name, topic), late_s)
        if "slotsOwned" in figures:
            self._set(self._slots, (name, topic), figures["slotsOwned"])

    def _set(self, gauge: Gauge, labels: tuple[str, ...], value: float) -> None:
        gauge.labels(*labels).set(value)
        self._kept.setdefault(labels[0], set()).add((gauge, labels))


def _figures(latest_offset: str | None) -> dict[str, dict[str, Any]]:
    """Read the progress of an rmq source, by topic; empty for the progress of another source."""
    try:
        progress = json.loads(latest_offset or "null")
    except ValueError:
        return {}
    if not isinstance(progress, dict) or not progress.keys() >= _MARK:
        return {}
    own = {progress.get("topic", ""): progress}
    topics: dict[str, dict[str, Any]] = progress.get("topics") or own
    return topics
