"""Requests of an exactly-once sink: stage messages, hidden from consumers, and publish them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_spark.protocol.calls import Call, Conversation, Request, fields_of, repeated, while_more
from rmq_spark.protocol.chunks import chunks
from rmq_spark.protocol.messagepack import Pairs
from rmq_spark.protocol.sending import SendResult
from rmq_spark.protocol.topic_queues import TopicQueues

MESSAGES_A_STAGING = 3900
STAGES_A_DISCARD = 1000
# Redis runs a pipeline of small requests without a break: 16 full calls block it for 0.2 s.
PUBLISHES_A_PIPELINE = 16


@dataclass(frozen=True)
class StageName:
    """The name of a stage, which is unique to one attempt of one task."""

    query: str
    batch: int
    partition: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.query}:{self.batch}:{self.partition}:{self.attempt}"

    @staticmethod
    def parse(text: str) -> "StageName":
        """Parse a text that str returned."""
        query, batch, partition, attempt = text.split(":")
        return StageName(query, int(batch), int(partition), attempt)


@dataclass(frozen=True)
class Begun:
    """A registered stage: when it was begun, in ms, and how many of its messages are published.

    values: those of each message, 2, or 3 with a body.
    """

    ms: int
    published: int = 0
    values: int = 2

    @staticmethod
    def parse(text: bytes) -> "Begun":
        """Parse the text that the scripts stage and publish write."""
        return Begun(*map(int, text.split()))


def stage(
    queues: TopicQueues,
    name: str,
    by_slot: Mapping[int, tuple[Pairs, Pairs]],
    held: Mapping[int, int],
) -> Request[dict[int, int]]:
    """Append messages to a stage. The answer is the stage's new number of messages, by slot.

    by_slot: score, content, score, content, ... for each slot, at most MESSAGES_A_STAGING messages;
    and content, body, content, body, ... of the same messages, or nothing for all messages of a
    stage. held: the number of messages that the stage must hold before, by slot. Raises ServerFull,
    and StageLost if the stage holds another number.
    """
    calls = [
        Call(
            "stage", _keys(queues, slot, name), [name, held.get(slot, 0), len(part[0]) // 2], *part
        )
        for slot, part in by_slot.items()
    ]
    return Request(calls, lambda replies: dict(zip(by_slot, replies, strict=True)))


def publish(
    queues: TopicQueues, totals: Mapping[int, Mapping[str, int]]
) -> Conversation[SendResult]:
    """Move the messages of stages into the stores.

    totals: the number of messages that each stage was given, by slot and stage name. A stage that
    is already published adds nothing. Raises StageLost if the messages in a stage and those
    published from it do not add up to its total.
    """
    send_script = queues.definition.type.send_script
    calls = [
        Call(
            "publish",
            _keys(queues, slot, name) + _keys_of_groups(queues, slot),
            [name, send_script, total, queues.keeps_first_body],
        )
        for slot, of_slot in totals.items()
        for name, total in of_slot.items()
    ]
    return _sent((yield from repeated(calls, while_more(calls, 0), PUBLISHES_A_PIPELINE)))


def _sent(replies: list[list[list[int]]]) -> SendResult:
    single = [reply for of_stage in replies for reply in of_stage]
    return SendResult(sum(reply[1] for reply in single), sum(reply[2] for reply in single))


def discard(queues: TopicQueues, names: Mapping[int, Iterable[str]]) -> Request[int]:
    """Delete stages, by slot. The answer is the number of stages that held messages."""
    keys = queues.keys
    calls = [
        Call("discard", [keys.stages(slot), *(keys.stage(slot, name) for name in part)], part)
        for slot, of_slot in names.items()
        for part in chunks(list(of_slot), STAGES_A_DISCARD)
    ]
    return Request(calls, sum)


def begun(queues: TopicQueues, slots: Sequence[int]) -> Request[list[dict[str, Begun]]]:
    """Look up the registered stages of each slot, by name."""
    reads = [("HGETALL", queues.keys.stages(slot)) for slot in slots]
    return Request(
        reads,
        lambda replies: [
            {name.decode(): Begun.parse(text) for name, text in fields_of(reply)}
            for reply in replies
        ],
    )


def _keys(queues: TopicQueues, slot: int, name: str) -> list[str]:
    return [queues.keys.stage(slot, name), queues.keys.stages(slot)]


def _keys_of_groups(queues: TopicQueues, slot: int) -> list[str]:
    groups = [queues.of_group(group) for group in queues.definition.groups]
    return [key for group in groups for key in group.keys_of(slot, "store retry stats bodies")]
