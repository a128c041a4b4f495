"""What a sender does about a topic that is full: it fails, or waits for room."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rmq_spark.errors import TopicFull, UnknownTopic
from rmq_spark.protocol import reading
from rmq_spark.protocol.packing import VALUES_A_ROW
from rmq_spark.protocol.sending import Part

if TYPE_CHECKING:  # it calls this module
    from rmq_spark.client.queue import Queue

_log = logging.getLogger(__name__)
# How long a sender that waits lets pass between two looks at a slot, and between two lines of log.
_LOOK_EVERY_S = 0.2
_LOG_EVERY_S = 60.0
_Done = TypeVar("_Done")
# Takes the queue, and the error of a slot. Raises it, or returns when calling again may help.
OnFull = Callable[["Queue", TopicFull], None]


def fail(_queue: "Queue", full: TopicFull) -> None:
    """Raise the error."""
    raise full


class WaitForRoom:
    """Waits until consumers have made room in the slot that had none."""

    def __init__(self) -> None:
        self._log_again_s = 0.0

    def __call__(self, queue: "Queue", full: TopicFull) -> None:
        """Return when there is more room, or when the limits or groups have changed.

        Raises UnknownTopic if the topic is deleted, or created again in another way.
        """
        if time.monotonic() >= self._log_again_s:
            _log.warning("rmq: waits for room: %s", full)
            self._log_again_s = time.monotonic() + _LOG_EVERY_S
        known = queue.definition
        while (now := queue.definition).shares == known.shares and full.group in now.groups:
            queue.server.pause(_LOOK_EVERY_S)
            queue.distrust()
            if not queue.refresh() or not queue.definition.takes_messages_of(known):
                raise UnknownTopic(
                    f"The topic {known.name} was deleted while a sender waited for room. "
                    "Messages that waited were not sent."
                )
            if full.group not in queue.definition.groups:
                return
            group = queue.of_group(full.group)
            (waiting,) = group.ask(reading.waiting, [full.slot], full.unit)
            if waiting < full.waiting:
                return


def in_rounds(
    queue: "Queue",
    parts: Mapping[int, Sequence[Part]],
    ask: Callable[[Mapping[int, Part]], Mapping[int, _Done | TopicFull]],
    on_full: OnFull | None,
) -> Iterator[tuple[int, _Done]]:
    """Make calls for slots, at most one for each slot at a time, because calls may change order.

    parts: what each call of a slot sends, in order. ask: takes the next part of slots. A part for
    which there was no room is redelivered after on_full. Without on_full, nothing more goes to its
    slot, and when all others have got theirs, its error is raised. Yields each answer with its
    slot.
    """
    left = {slot: list(of_slot) for slot, of_slot in parts.items()}
    refused: dict[int, TopicFull] = {}
    while left := {slot: of_slot for slot, of_slot in left.items() if of_slot}:
        full = None
        for slot, answer in ask({slot: of_slot[0] for slot, of_slot in left.items()}).items():
            if not isinstance(answer, TopicFull):
                del left[slot][0]
                yield slot, answer
            elif on_full is None:
                amount = _messages(parts[slot])
                answer.refused = {slot: set(range(amount - _messages(left.pop(slot)), amount))}
                refused[slot] = answer
            else:
                full = full or answer
        if full is not None and on_full is not None:
            on_full(queue, full)
    if refused:
        first, *others = refused.values()
        first.others = {other.slot: other for other in others}
        first.refused = {slot: one.refused[slot] for slot, one in refused.items()}
        raise first


def _messages(parts: Sequence[Part]) -> int:
    return sum(len(pairs) // VALUES_A_ROW for pairs, _ in parts)
