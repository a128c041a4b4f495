"""Requests that look for one message in the queues of a topic."""

from collections.abc import Sequence
from typing import Any

from rmq_spark.protocol.calls import Request
from rmq_spark.protocol.pages import Death, Page, QueueKind
from rmq_spark.protocol.topic_queues import TopicQueues

# Stands in front of the body of a message that was requeued (lua/include/bodies.lua).
_REQUEUED = b"~"


def slots_with(
    queues: TopicQueues, kind: QueueKind, content: bytes, slots: Sequence[int]
) -> Request[list[int]]:
    """Find the slots whose queue holds a content, or in a keyed topic a key.

    kind: any queue except prepare.
    """
    reads = [("ZMSCORE", getattr(queues.keys, kind)(slot), content) for slot in slots]

    def read(replies: list[Any]) -> list[int]:
        return [slot for slot, score in zip(slots, replies, strict=True) if score[0] is not None]

    return Request(reads, read)


def entry(queues: TopicQueues, kind: QueueKind, slot: int, content: bytes) -> Request[Page]:
    """Read one message of a queue. The answer is a page with it, or an empty page.

    kind: any queue except prepare. content: in a keyed topic, the key.
    """
    is_dead = kind is QueueKind.DEAD
    belongings = queues.keys.deaths(slot) if is_dead else queues.keys.bodies(slot)
    reads = [
        ("ZMSCORE", getattr(queues.keys, kind)(slot), content),
        ("HGET", belongings, content),
    ]

    def read(replies: list[Any]) -> Page:
        (score,), belonging = replies
        there = [] if score is None else [(belonging or b"").removeprefix(_REQUEUED)]
        deaths = [Death.parse(text) for text in there] if is_dead else []
        return Page(
            topic=queues.definition,
            kind=kind,
            slot=slot,
            contents=[content] * len(there),
            scores=[float(score) for _ in there],
            deaths=deaths,
            bodies=[death.body for death in deaths] if is_dead else there,
        )

    return Request(reads, read)
