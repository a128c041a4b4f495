"""The figures of streaming queries that read rmq, kept while they run."""

import json
import time
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_LABELS = ("query", "topic")
# Seconds; a trigger costs Spark 0.2 s before it moves a row, and a lease ends after 60.
_BUCKETS = (0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_MARK = {"due", "oldestDueMs"}


class QueryMetrics(StreamingQueryListener):
    """A listener that keeps the figures of each query in a registry of prometheus-client.

    ``spark.streams.addListener(QueryMetrics())``, and ``prometheus_client.start_http_server(port)``
    in the same program serves them. A query is named by its queryName, else by its id. Where it
    reads several topics, the label topic is empty in what it counts itself.
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
        self._names: dict[str, str] = {}
        self._kept: dict[str, set[tuple[Gauge, tuple[str, ...]]]] = {}  # by query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query begins."""
        self._names[str(event.id)] = event.name or str(event.id)
        self._active.labels(self._name(event.id)).set(1)
        self._failures.labels(self._name(event.id))  # 0, so that the first one is an increase

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done, or nothing came for a while."""
        progress = event.progress
        name = self._name(progress.id)
        ours = [found for source in progress.sources if (found := _figures(source.latestOffset))]
        if not ours:
            return
        self._received.labels(name).inc(progress.numInputRows)
        if progress.numInputRows:
            self._batches.labels(name).observe(progress.batchDuration / 1000)
        for figures in ours:
            for topic, of_topic in figures.items():
                self._note(name, topic, of_topic)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing is due, or nothing that it may have."""
        for gauge, labels in self._kept.get(self._name(event.id), ()):
            if gauge is self._lateness or labels[2:] == ("due",):
                gauge.labels(*labels).set(0)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        name = self._name(event.id)
        self._active.labels(name).set(0)
        if event.exception is not None:
            self._failures.labels(name).inc()
        for gauge, labels in self._kept.pop(name, set()):  # of the queues it knows no more
            gauge.remove(*labels)
        self._names.pop(str(event.id), None)

    def _name(self, query_id: Any) -> str:
        return self._names.get(str(query_id), str(query_id))

    def _note(self, name: str, topic: str, figures: dict[str, Any]) -> None:
        for state in ("due", "delayed", "prepared", "retry", "dead"):
            self._set(self._messages, (name, topic, state), figures[state])
        for event, count in figures["counters"].items():
            self._set(self._events, (name, topic, event), count)
        oldest = figures["oldestDueMs"]
        late_s = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
        self._set(self._lateness, (name, topic), late_s)
        if "slotsOwned" in figures:
            self._set(self._slots, (name, topic), figures["slotsOwned"])

    def _set(self, gauge: Gauge, labels: tuple[str, ...], value: float) -> None:
        gauge.labels(*labels).set(value)
        self._kept.setdefault(labels[0], set()).add((gauge, labels))


def _figures(latest_offset: str | None) -> dict[str, dict[str, Any]]:
    """What a source of ours reported, by topic; empty for another's."""
    try:
        found = json.loads(latest_offset or "null")
    except ValueError:
        return {}
    if not isinstance(found, dict) or not found.keys() >= _MARK:
        return {}
    topics: dict[str, dict[str, Any]] = found.get("topics") or {found.get("topic", ""): found}
    return topics
