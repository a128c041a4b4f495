"""Requests of senders and operators: send, cancel, move, requeue, purge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from rmq_spark.protocol.calls import Call, Conversation, Request, TopicQueues, repeated
from rmq_spark.protocol.packing import (
    BYTES_A_CALL,
    Pairs,
    calls_of,
    chunks_in_bytes,
    largest_of,
    lowest_of,
)
from rmq_spark.protocol.pages import QueueKind

# A slot with 300 000 messages takes 3 to 5 us for each that is sent or cancelled, so that the calls
# of others wait less than 10 ms (bench/stalls.py). The scripts take up to 3900: Lua passes at most
# 7999 values to a call, and each message is two.
MESSAGES_A_SEND = 2048
# A requeue goes from message to message, and takes 8 to 17 us for each; a move and a purge take 4
# to 6 us.
MESSAGES_A_REPAIR = 512
# Redis runs a pipeline of small requests without a break: 16 full calls block it for 0.1 s.
REQUEUES_A_PIPELINE = 16


@dataclass(frozen=True, slots=True)
class SendResult:
    """The number of messages that were new, and that merged with a stored message."""

    new: int
    merged: int


def send(
    queues: TopicQueues, by_slot: Mapping[int, Pairs], bodies: Mapping[int, Pairs] | None = None
) -> Request[SendResult]:
    """Send messages to all consumer groups. The answer has the counts of the first group.

    by_slot: score, content, score, content, ... for each slot. The score of a RangeMerge message is
    its time range in ms; for other types, it is the score in the store. bodies: content, body,
    content, body, ... in the same order, for each slot whose messages have bodies; an empty body
    stands for none.
    """
    bodies_of = bodies or {}
    calls = [
        _send_call(queues, slot, *part)
        for slot, pairs in by_slot.items()
        for part in calls_of(pairs, MESSAGES_A_SEND, bodies_of.get(slot, ()))
    ]
    return Request(
        calls,
        lambda replies: SendResult(sum(new for new, _ in replies), sum(old for _, old in replies)),
        last_counts=True,  # of equal messages in two calls
    )


def _send_call(queues: TopicQueues, slot: int, pairs: Pairs, bodies: Pairs) -> Call:
    lowest = [lowest_of(pairs)] if queues.sends_times else []
    args = [len(pairs) // 2, queues.keeps_first_body, largest_of(pairs), *lowest]
    keys = queues.keys_of_groups(slot)
    return Call(queues.definition.type.send_script, keys, args, pairs, bodies)


def occur(
    queues: TopicQueues,
    slot: int,
    schedule: str,
    notes: tuple[str, str],
    message: tuple[int, bytes, bytes] | None,
) -> Request[tuple[bool, str]]:
    """Note an occurrence of a schedule, and send its message, if it has one, in the same step.

    notes: the one that was read of the schedule, empty for none, and the new one. message: score,
    content and body, as for send. The answer: whether it was done, and the note there now. Without
    effect if the note is not the one that was read.
    """
    keys = [queues.keys.schedules(slot), *queues.keys_of_groups(slot)]
    send_script = queues.definition.type.send_script if message else ""
    args = [schedule, *notes, send_script, queues.keeps_first_body, *(message or (0, "", ""))]

    def read(replies: list[Any]) -> tuple[bool, str]:
        reply = replies[0]
        return (True, notes[1]) if reply[0] else (False, reply[1].decode())

    return Request([Call("occur", keys, args)], read)


def cancel(queues: TopicQueues, contents: Mapping[int, Sequence[bytes]]) -> Request[int]:
    """Remove contents, by slot, that nobody in this group has claimed. The answer: how many."""
    calls = [
        Call("cancel", queues.keys_of(slot, "store retry stats bodies"), part)
        for slot, wanted in contents.items()
        for part in chunks_in_bytes(wanted, MESSAGES_A_SEND, BYTES_A_CALL, len)
    ]
    return Request(calls, sum)


def move(queues: TopicQueues, contents: Mapping[int, Sequence[bytes]], score: int) -> Request[int]:
    """Give messages, by slot, that wait another score, above 16. The answer: how many have it.

    Those that were rolled back keep their retries: they wait for the due time in the retry queue,
    and stay where they are in a topic of priorities.
    """
    calls = [
        Call(
            "move",
            queues.keys_of(slot, "store retry stats"),
            [queues.has_due_times, score, *part],
        )
        for slot, wanted in contents.items()
        for part in chunks_in_bytes(wanted, MESSAGES_A_REPAIR, BYTES_A_CALL, len)
    ]
    return Request(calls, sum)


def requeue(queues: TopicQueues, by_slot: Mapping[int, Pairs]) -> Conversation[int]:
    """Move messages from the dead queue to the store as first deliveries.

    by_slot: score (above 16), content, score, content, ... for each slot. Returns the number of
    messages that were in the dead queue.
    """
    calls = [
        Call(
            "requeue",
            queues.keys_of(slot, "store retry dead deaths stats bodies"),
            [queues.sends_times, queues.descending],
            part,
        )
        for slot, pairs in by_slot.items()
        for part, _ in calls_of(pairs, MESSAGES_A_REPAIR)
    ]

    def next_call(at: int, reply: Sequence[int]) -> Call | None:
        left = calls[at].pairs[2 * reply[1] :]  # of messages with large bodies
        calls[at] = replace(calls[at], pairs=left)
        return calls[at] if len(left) else None

    replies = yield from repeated(calls, next_call, REQUEUES_A_PIPELINE)
    return sum(reply[0] for of_part in replies for reply in of_part)


def purge(
    queues: TopicQueues, by_slot: Mapping[int, Sequence[Any]], kind: QueueKind
) -> Request[int]:
    """Delete messages from one queue for good. The answer is the number of deleted messages.

    by_slot: score, content, score, content, ... for each slot. A message whose score has changed
    (it was sent again, or died again) stays; an empty score matches every score.
    """
    is_dead = kind is QueueKind.DEAD
    counter, belongings = ("", "deaths") if is_dead else ("cancelled", "bodies")
    calls = [
        Call(
            "purge",
            queues.keys_of(slot, f"{kind} stats {belongings}"),
            [counter, *chain.from_iterable(part)],
        )
        for slot, pairs in by_slot.items()
        for part in chunks_in_bytes(
            list(zip(pairs[::2], pairs[1::2], strict=True)),
            *(MESSAGES_A_REPAIR, BYTES_A_CALL, _content_size),
        )
    ]
    return Request(calls, sum)


def _content_size(pair: tuple[Any, bytes]) -> int:
    return len(pair[1])
