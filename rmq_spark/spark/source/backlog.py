"""What there is to read: for an AvailableNow query, and for every progress report."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.protocol.claims import CommitResult, Figures, SlotDue

_log = logging.getLogger(__name__)

# Spark does not tell a source whether a batch was read: that no claim is made is the only sign.
NOT_READ = (
    "the query plans batches, but no task reads them, so no message is consumed. The function of "
    "foreachBatch must run an action on the DataFrame that it is given, such as write or collect"
)


class Backlog:
    """What an AvailableNow query reads: what was due when it began, in the slots it may claim.

    A slot that was planned in two batches that took nothing is not asked again: what
    looks due there is held by others, and would be planned for ever. (Once may be the reply of a
    commit that was lost and asked for again.) Messages that were rolled back count as unread.
    """

    def __init__(self, queue: Queue, due_before_ms: int) -> None:
        """due_before_ms: Redis' time when the query began."""
        self._topic = queue.definition.name
        self.due_before_ms = due_before_ms
        self._left = self._held = 0
        self._counted: set[int] = set()
        self._planned: dict[int, int] = {}
        self._unread = False  # nobody read the last batch
        self._empty: set[int] = set()
        self._barren: set[int] = set()
        if queue.definition.paused:
            _log.warning("rmq: topic %s is paused: nothing is read", self._topic)

    def bound(self, due: int) -> int:
        """How many of the messages that are due the next batch may take."""
        return min(due, self._left)

    def begin(self, quotas: dict[int, int]) -> None:
        """A batch of these messages by slot is planned."""
        self._planned = quotas
        self._left -= sum(quotas.values())

    def done(self, result: CommitResult) -> None:
        """That batch is done; what it did not find, or rolled back, may still be read."""
        # What was moved was another's, or waited: it must not take the place of what was due.
        self._left += sum(self._planned.values()) - result.committed + result.moved
        self._unread = bool(self._planned) and not result.records
        if result.claimed or result.moved:
            self._empty -= self._planned.keys()
        else:
            self._barren |= self._empty & self._planned.keys()
            self._empty |= self._planned.keys()
        self._planned = {}

    def takeable(self, slots: list[SlotDue]) -> list[SlotDue]:
        """The slots to plan from, of what was seen; what is due in a new one is to be read, too."""
        new = [slot for slot in slots if slot.slot not in self._counted]
        self._left += sum(slot.due + slot.held for slot in new)
        self._counted |= {slot.slot for slot in slots}
        self._held = sum(
            slot.held + (slot.due if slot.slot in self._barren else 0) for slot in slots
        )
        return [slot for slot in slots if slot.slot not in self._barren]

    def end(self) -> None:
        """Nothing more is read; what is due but cannot be had is named in a warning."""
        if self._held:
            _log.warning(
                "rmq: topic %s: the query ends with %d due messages unread: %s",
                self._topic,
                self._held,
                NOT_READ if self._unread else "other consumers hold them",
            )
        self._left = 0


def backlog_figures(figures: Figures) -> dict[str, Any]:
    """What every progress report shows of a topic.

    counters: since it was made, for all who read it in this consumer group.
    """
    return {
        "due": figures.store.due,
        "delayed": figures.store.count - figures.store.due,
        "prepared": figures.prepare.count,
        "retry": figures.retry.count,
        "dead": figures.dead.count,
        "oldestDueMs": figures.store.oldest_ms,
        "counters": figures.counters,
    }


def summed_figures(topics: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several topics together; of none, zeros."""
    names = ("due", "delayed", "prepared", "retry", "dead")
    oldest = [topic["oldestDueMs"] for topic in topics if topic["oldestDueMs"] is not None]
    return {name: sum(topic[name] for topic in topics) for name in names} | {
        "oldestDueMs": min(oldest, default=None)
    }
