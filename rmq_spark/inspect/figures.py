"""The figures of all topics at one moment, and the rates between two of them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from rmq_spark.client.administration import all_queues
from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import RmqError, ScriptFailed, WrongKeyType
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import ConsumerSeen, Figures
from rmq_spark.topics.definition import TopicDefinition, group_text

# From here on, people are warned that something is nearly full.
FULL_PERCENT = 80
# A consumer not seen for this long counts as gone: a lease lasts a minute by default.
CONSUMER_SEEN_MS = 60_000
# About as many calls as a pipeline has.
SLOTS_AT_ONCE = 4096
_T = TypeVar("_T")


@dataclass(frozen=True)
class Row:
    """The state of one consumer group of a topic at one moment."""

    queue: Queue
    now_ms: int
    figures: Figures
    known_consumers: list[ConsumerSeen]
    held_until_ms: int | None = None
    used: dict[str, float] = field(default_factory=dict)

    @property
    def definition(self) -> TopicDefinition:
        return self.queue.definition

    @property
    def topic(self) -> str:
        return self.queue.definition.name

    @property
    def group(self) -> str:
        return group_text(self.queue.keys.group)

    @property
    def consumers(self) -> list[ConsumerSeen]:
        return [seen for seen in self.known_consumers if seen.ms_ago < CONSUMER_SEEN_MS]

    @property
    def due(self) -> int:
        return self.figures.store.due + self.figures.retry.due

    def full_to(self, percent: int = 0) -> dict[str, str]:
        """Describe the limits, by unit, of which the fullest slot uses so much of its share."""
        return {
            unit: f"a slot has {used:.0%} of its share of max_{unit}"
            for unit, used in self.used.items()
            if 100 * used >= percent
        }

    @property
    def states(self) -> dict[str, int]:
        """The number of messages in each state; due includes retries whose wait is over."""
        return {**self.figures.states, "due": self.due}

    @property
    def oldest_age_ms(self) -> int | None:
        """The time for which the oldest due message has been due, in ms; None if nothing is due."""
        first = self.figures.store.oldest_ms
        return None if first is None else max(0, self.now_ms - first)


class Shared(Generic[_T]):
    """The result of a function, or its error, which all who ask for it at the same time share.

    find: the function. It runs in one thread at a time. kept_s: for how long its result is also the
    answer to those who ask later; an error is not.
    """

    def __init__(self, find: Callable[[], _T], kept_s: float = 0.0) -> None:
        self._find = find
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._era = object()  # another one after each forget, which may come during a find
        self._found: tuple[object, float, Future[_T]] | None = None  # its era, and until when

    def get(self) -> _T:
        asked_s = time.monotonic()
        with self._lock:
            era, found = self._era, self._found
            if found is None or found[0] is not era or found[1] < asked_s:
                answer, kept_s = Future[_T](), self._kept_s
                try:
                    answer.set_result(self._find())
                except Exception as error:
                    answer.set_exception(error)
                    kept_s = 0.0
                found = self._found = era, time.monotonic() + kept_s, answer
        return found[2].result()

    def forget(self) -> None:
        self._era = object()


def look(
    broker: Broker,
    names: Sequence[str] | None = None,
    failed: Callable[[str, str, RmqError], None] | None = None,
) -> list[Row]:
    """Return a row for each group of all topics, or of the topics in ``names`` that exist.

    failed: called with a topic and group whose keys cannot be read (of another version, or of
    another type) and the error, which is raised without it; the group then has no row. Also called,
    with all groups, for a topic whose definition cannot be read; without it, the log has a warning.
    """

    def unread(topic: str, error: RmqError) -> None:
        if failed is None:
            broker.left_out(topic, error)
        else:
            failed(topic, "(all)", error)

    rows = []
    for part in _parts(all_queues(broker, names, unread)):
        rows += _rows(broker, part, failed)
    return rows


def _parts(queues: Iterable[Queue]) -> Iterator[list[Queue]]:
    """Split queues into parts whose keys fit in memory."""
    part, slots = list[Queue](), 0
    for queue in queues:
        part.append(queue)
        slots += len(queue.slots)
        if slots >= SLOTS_AT_ONCE:
            yield part
            part, slots = [], 0
    if part:
        yield part


def _rows(
    broker: Broker, queues: list[Queue], failed: Callable[[str, str, RmqError], None] | None
) -> list[Row]:
    one_node = not broker.server.is_cluster
    try:
        request = reading.overviews([queue.queues for queue in queues], one_node=one_node)
        found = broker.server.ask(request)
    except (ScriptFailed, WrongKeyType) as error:
        if failed is None:
            raise
        if len(queues) == 1:
            failed(queues[0].definition.name, group_text(queues[0].keys.group), error)
            return []
        halves = queues[: len(queues) // 2], queues[len(queues) // 2 :]
        return [row for half in halves for row in _rows(broker, half, failed)]
    return [Row(queue, *overview) for queue, overview in zip(queues, found, strict=True)]


class Rate(NamedTuple):
    """Messages that a group accepted and committed per second. at_s: of a monotonic clock."""

    at_s: float
    came: float
    went: float


class Rates:
    """The rates of consumer groups, from their counters. Threads can share them.

    keep: how many rates of a group to keep. least_s: counters that come earlier after the last ones
    make no rate of their own.
    """

    def __init__(self, keep: int = 1, least_s: float = 0.0) -> None:
        self._keep = keep
        self._least_s = least_s
        self._lock = threading.Lock()
        self._before: dict[tuple[str, str], tuple[float, Mapping[str, int]]] = {}
        self._rates: dict[tuple[str, str], deque[Rate]] = {}

    def note_all(self, rows: Sequence[Row]) -> list[Rate]:
        """Note the counters of all groups, and forget groups that are not there any more."""
        with self._lock:
            found = list(map(self._note, rows))
            for gone in self._before.keys() - {(row.topic, row.group) for row in rows}:
                del self._before[gone], self._rates[gone]
        return found

    def note(self, row: Row) -> Rate:
        """Note the counters of a group. Returns its rate since the last ones, at first zero."""
        with self._lock:
            return self._note(row)

    def _note(self, row: Row) -> Rate:
        at, key, counters = time.monotonic(), (row.topic, row.group), row.figures.counters
        then, before = self._before.setdefault(key, (at, counters))
        rates = self._rates.setdefault(key, deque(maxlen=self._keep))
        spent = at - then
        if spent <= 0 or (rates and spent < self._least_s):
            return rates[-1] if rates else Rate(at, 0.0, 0.0)
        came, went = (counters[name] - before[name] for name in ("accepted", "committed"))
        rates.append(Rate(at, max(0, came) / spent, max(0, went) / spent))
        self._before[key] = (at, counters)
        return rates[-1]

    def line(self, topic: str, group: str) -> list[Rate]:
        with self._lock:
            return list(self._rates.get((topic, group), ()))
