"""Requests of senders and operators: send, cancel, move, requeue, purge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from rmq_spark.errors import TopicFull
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
from rmq_spark.topics.definition import TopicDefinition, group_text

# A slot with 300 000 messages takes 3 to 5 us for each that is sent or cancelled, so that the calls
# of others wait less than 10 ms (bench/stalls.py). The scripts take up to 3900: Lua passes at most
# 7999 values to a call, and each message is two.
MESSAGES_A_SEND = 2048
# With a limit, so many calls fill a slot: a sender need not wait until the whole slot is empty.
_CALLS_FILL_A_SLOT = 4
# A requeue goes from message to message, and takes 8 to 17 us for each; a move and a purge take 4
# to 6 us.
MESSAGES_A_REPAIR = 512
# Redis runs a pipeline of small requests without a break: 16 full calls block it for 0.1 s.
REQUEUES_A_PIPELINE = 16


@dataclass(frozen=True, slots=True)
class SendResult:
    """How many messages were new, merged with a stored one, or were refused as repeats.

    repeated: not accepted, because an equal one was within the topic's unique_for.
    """

    new: int
    merged: int
    repeated: int = 0

    def __repr__(self) -> str:
        repeated = f", repeated={self.repeated}" if self.repeated else ""
        return f"SendResult(new={self.new}, merged={self.merged}{repeated})"

    def __add__(self, other: "SendResult") -> "SendResult":
        return SendResult(
            self.new + other.new, self.merged + other.merged, self.repeated + other.repeated
        )


# Messages of one slot for one call: pairs, and bodies or nothing.
Part = tuple[Pairs, Pairs]


def parts_of(
    topic: TopicDefinition,
    by_slot: Mapping[int, Pairs],
    bodies: Mapping[int, Pairs] | None = None,
    most: int = MESSAGES_A_SEND,
) -> dict[int, list[Part]]:
    """Cut the messages of slots into calls, which are small enough to find room in a slot.

    by_slot, bodies: as for send. most: of one call.
    """
    if share := topic.shares.get("messages"):
        most = min(most, max(1, share // _CALLS_FILL_A_SLOT))
    bodies_of = bodies or {}
    return {
        slot: list(calls_of(pairs, most, bodies_of.get(slot, ())))
        for slot, pairs in by_slot.items()
    }


def send(
    queues: TopicQueues, by_slot: Mapping[int, Pairs], bodies: Mapping[int, Pairs] | None = None
) -> Request[SendResult]:
    """Send messages to all consumer groups. The answer has the counts of the first group.

    by_slot: score, content, score, content, ... for each slot. The score of a RangeMerge message is
    its time range in ms; for other types, it is the score in the store. bodies: content, body,
    content, body, ... in the same order, for each slot whose messages have bodies; an empty body
    stands for none. For a topic without max_messages and max_bytes.
    """
    of_slots = parts_of(queues.definition, by_slot, bodies)
    parts = [(slot, part) for slot, of_slot in of_slots.items() for part in of_slot]

    def read(replies: list[Any]) -> SendResult:
        return SendResult(*map(sum, zip(*replies, strict=True))) if replies else SendResult(0, 0)

    return Request(_send_calls(queues, parts), read, last_counts=True)


def send_parts(
    queues: TopicQueues, parts: Sequence[tuple[int, Part]]
) -> Request[list[SendResult | TopicFull]]:
    """Send messages of slots. For each part, the answer has its counts, or an error: no room."""
    calls = _send_calls(queues, parts)
    return Request(calls, lambda replies: _answers(queues, parts, replies), last_counts=True)


def _answers(
    queues: TopicQueues, parts: Sequence[tuple[int, Part]], replies: list[Any]
) -> list[SendResult | TopicFull]:
    return [
        refusal_of(queues, slot, reply) or SendResult(*reply)
        for (slot, _), reply in zip(parts, replies, strict=True)
    ]


def _send_calls(queues: TopicQueues, parts: Sequence[tuple[int, Part]]) -> list[Call]:
    script, sends_times = queues.definition.type.send_script, queues.sends_times
    keeps_first, limits = queues.keeps_first_body, queues.limits
    calls = []
    for slot, (pairs, bodies) in parts:
        args = [len(pairs) // 2, keeps_first, largest_of(pairs), limits]
        if sends_times:
            args.append(lowest_of(pairs))
        calls.append(Call(script, queues.keys_of_groups(slot), args, pairs, bodies))
    return calls


def refusal_of(queues: TopicQueues, slot: int, reply: Any) -> TopicFull | None:
    """Return the error for a reply that says that a slot has no room; None for any other reply."""
    if not isinstance(reply, list) or reply[0] >= 0:
        return None
    topic, (_, place, waiting, name) = queues.definition, reply
    unit, group = name.decode(), topic.groups[place]
    limit = f"max_{unit}={getattr(topic, f'max_{unit}')}"
    return TopicFull(
        f"Topic {topic.name} is full: slot {slot} of group {group_text(group)} holds {waiting} of "
        f"the {topic.shares[unit]} {unit} that are its share of {limit}, too many "
        "for those that were sent to it. Messages without room were not sent. Send them again when "
        f"consumers have made room, or raise max_{unit} with broker.alter or rmq alter.",
        *(slot, group, waiting, unit),
    )


class Occurred(NamedTuple):
    """Whether an occurrence was noted, the note there now, and whether its message was repeated."""

    done: bool
    note: str
    repeated: bool = False


def occur(
    queues: TopicQueues,
    slot: int,
    schedule: str,
    notes: tuple[str, str],
    message: tuple[int, bytes, bytes] | None,
) -> Request[Occurred]:
    """Note an occurrence of a schedule, and send its message, if it has one, in the same step.

    notes: the one that was read of the schedule, empty for none, and the new one. message: score,
    content and body, as for send. Without effect if the note is not the one that was read, or if it
    raises TopicFull.
    """
    keys = [queues.keys.schedules(slot), *queues.keys_of_groups(slot)]
    send_script = queues.definition.type.send_script if message else ""
    how = send_script, queues.keeps_first_body, queues.limits
    args = [schedule, *notes, *how, *(message or (0, "", ""))]

    def read(replies: list[Any]) -> Occurred:
        reply = replies[0]
        if refusal := refusal_of(queues, slot, reply):
            raise refusal
        if reply[0]:
            return Occurred(True, notes[1], bool(reply[1]))
        return Occurred(False, reply[1].decode(errors="replace"))

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
