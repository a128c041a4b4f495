"""The backlog of a topic, as an AvailableNow query reads it and as progress reports show it."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.protocol.claims import STATES, CommitResult, Overview, SlotDue

_log = logging.getLogger(__name__)

# Spark does not report to a source whether a batch was read. The only sign is that its tasks have
# made no claim.
NOT_READ = (
    "the query plans batches, but no task reads them, so no message is consumed. The function of "
    "foreachBatch must run an action on the DataFrame that it is given, such as write or collect; "
    "and a file sink skips batches whose numbers its output folder has"
)
_MOST_SLOTS_NAMED = 10


class Backlog:
    """The messages of one topic that were due when an AvailableNow query began.

    It covers the slots that the query may claim. A message that is rolled back counts as unread.

    A slot is given up after two batches that planned messages from it but took and moved nothing.
    Otherwise it would be planned again and again: other consumers hold what looks due there, or no
    task reads the batches. One such batch is not enough, because a commit that is repeated after a
    lost reply also finds nothing.
    """

    def __init__(self, queue: Queue, due_before_ms: int) -> None:
        self._topic = queue.definition.name
        self.due_before_ms = due_before_ms
        self._left = 0  # messages that the query may still read
        self._held = 0  # due messages that it cannot claim
        self._held_in: list[int] = []  # the slots of these
        self._counted: set[int] = set()  # slots whose due messages are part of _left
        self._planned: dict[int, int] = {}  # messages by slot in the batch in progress
        self._unread = False  # whether no task has read the last batch
        self._empty: set[int] = set()  # slots whose last planned batch took nothing
        self._given_up: set[int] = set()

    def bound(self, due: int) -> int:
        return min(due, self._left)

    def begin(self, quotas: dict[int, int]) -> None:
        self._planned = quotas
        self._left -= sum(quotas.values())

    def note_committed(self, result: CommitResult) -> None:
        """Count what the batch did not find, or rolled back, as unread again."""
        # Moved messages waited for a retry. They must not use up the allowance of those that were
        # due. Expired ones were due, and are gone.
        gone = result.committed + result.expired - result.moved
        self._left += sum(self._planned.values()) - gone
        self._unread = bool(self._planned) and not result.records
        if result.claimed or result.moved or result.expired:
            self._empty -= self._planned.keys()
        else:
            self._given_up |= self._empty & self._planned.keys()
            self._empty |= self._planned.keys()
        self._planned = {}

    def note_given_back(self, messages: Mapping[int, int]) -> None:
        """Note that messages of expired claims wait again; by slot.

        They belonged to other consumers, and must not use up the allowance of the messages that
        were due, unless they are counted with these.
        """
        self._left += sum(n for slot, n in messages.items() if slot in self._counted)

    def takeable(self, slots: list[SlotDue]) -> list[SlotDue]:
        """Return the slots to plan from. Counts those that it sees for the first time."""
        new = [slot for slot in slots if slot.slot not in self._counted]
        self._left += sum(slot.due + slot.held for slot in new)
        self._counted |= {slot.slot for slot in slots}
        held = {
            slot.slot: slot.held + (slot.due if slot.slot in self._given_up else 0)
            for slot in slots
        }
        self._held = sum(held.values())
        self._held_in = [slot for slot, messages in held.items() if messages]
        return [slot for slot in slots if slot.slot not in self._given_up]

    def end(self, why_stopped: Callable[[], str]) -> None:
        """Read nothing more. Warn if due messages are left that cannot be claimed.

        why_stopped: returns why nobody gets messages of the topic now, or "".
        """
        if self._held:
            stopped = why_stopped()
            slots = ", ".join(map(str, self._held_in[:_MOST_SLOTS_NAMED]))
            more = " and others" if len(self._held_in) > _MOST_SLOTS_NAMED else ""
            held_back = (
                "other consumers hold them until they commit or their lease ends "
                f"(slots {slots}{more})"
            )
            if self._unread:
                held_back = NOT_READ
            _log.warning(
                "rmq: topic %s: the query ends with %d due message%s unread: %s",
                self._topic,
                self._held,
                "" if self._held == 1 else "s",
                stopped or held_back,
            )
        self._left = 0


def backlog_figures(overview: Overview) -> dict[str, Any]:
    figures = overview.figures
    return {
        **figures.states,
        "oldestDueMs": figures.store.oldest_ms,
        "asOfMs": overview.now_ms,
        "counters": figures.counters,
    }


def summed_figures(topics: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the figures of several topics. oldestDueMs is the earliest of them, asOfMs the latest."""
    oldest = [topic["oldestDueMs"] for topic in topics if topic["oldestDueMs"] is not None]
    return {name: sum(topic[name] for topic in topics) for name in STATES} | {
        "oldestDueMs": min(oldest, default=None),
        "asOfMs": max((topic["asOfMs"] for topic in topics), default=None),
    }
