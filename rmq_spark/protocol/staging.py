"""Requests of an exactly-once sink: stage messages, hidden from consumers, and publish them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.errors import ScriptFailed, TopicFull
from rmq_spark.protocol.calls import (
    Call,
    Conversation,
    Request,
    TopicQueues,
    fields_of,
    repeated,
    while_more,
)
from rmq_spark.protocol.packing import Pairs, chunks
from rmq_spark.protocol.sending import SendResult, refusal_of

MESSAGES_A_STAGING = 3900
STAGES_A_DISCARD = 1000
# Redis runs a pipeline of small requests without a break: 16 full calls block it for 0.2 s.
PUBLISHES_A_PIPELINE = 16
# A query that was not seen for this long is forgotten: its checkpoint is probably deleted.
FORGET_STAGES_MS = 30 * 24 * 3600 * 1000
MANIFEST_VERSION = 2


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
    """A stage: its start in ms, messages published, and values a message (3 with a body)."""

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
) -> Request[dict[int, int | TopicFull]]:
    """Append messages to a stage. The answer is the stage's new number of messages, by slot.

    by_slot: score, content, score, content, ... for each slot, at most MESSAGES_A_STAGING messages;
    and content, body, content, body, ... of the same messages, or nothing for all messages of a
    stage. held: the number of messages that the stage must hold before, by slot. For a slot without
    room, the answer is an error, and the stage unchanged. Raises ServerFull, and StageLost if the
    stage holds another number.
    """
    limits = queues.some_limits(on_equal=False)
    calls = []
    for slot, part in by_slot.items():
        keys = _keys(queues, slot, name) + (queues.keys_of_groups(slot) if limits else [])
        args = [name, held.get(slot, 0), len(part[0]) // 2, limits]
        calls.append(Call("stage", keys, args, *part))

    def read(replies: list[Any]) -> dict[int, int | TopicFull]:
        answers = zip(by_slot, replies, strict=True)
        return {slot: refusal_of(queues, slot, reply) or reply for slot, reply in answers}

    return Request(calls, read)


def publish(
    queues: TopicQueues, totals: Mapping[int, Mapping[str, int]]
) -> Conversation[SendResult]:
    """Move the messages of stages into the stores.

    totals: the number of messages that each stage was given, by slot and stage name. A stage that
    is already published adds nothing. Raises StageLost if the messages in a stage and those
    published from it do not add up to its total.
    """
    send_script = queues.definition.type.send_script
    limits = queues.some_limits(on_waiting=False)
    calls = [
        Call(
            "publish",
            _keys(queues, slot, name) + queues.keys_of_groups(slot),
            [name, send_script, total, queues.keeps_first_body, limits],
        )
        for slot, of_slot in totals.items()
        for name, total in of_slot.items()
    ]
    return _sent((yield from repeated(calls, while_more(calls, 0), PUBLISHES_A_PIPELINE)))


def _sent(replies: list[list[list[int]]]) -> SendResult:
    single = [reply for of_stage in replies for reply in of_stage]
    return sum((SendResult(*reply[1:]) for reply in single), SendResult(0, 0))


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


@dataclass(frozen=True)
class Manifest:
    """The contents of a batch: the number of messages by stage name, topic and slot."""

    stages: Mapping[str, Mapping[str, Mapping[int, int]]]
    messages: int = 0

    def by_topic(self) -> dict[str, dict[int, dict[str, int]]]:
        """Return the number of messages of each stage, by topic, slot and stage name."""
        topics: dict[str, dict[int, dict[str, int]]] = {}
        for name, slots_of in self.stages.items():
            for topic, totals in slots_of.items():
                for slot, total in totals.items():
                    topics.setdefault(topic, {}).setdefault(slot, {})[name] = total
        return topics

    @property
    def digest(self) -> str:
        """The SHA-1 of the manifest's text in Redis, by which scripts distinguish manifests."""
        return hashlib.sha1(self.to_json().encode(), usedforsecurity=False).hexdigest()

    def to_json(self) -> str:
        """Return the text that Redis keeps in ``sink:<query>``."""
        fields = {"version": MANIFEST_VERSION, "stages": self.stages, "messages": self.messages}
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        """Parse a text of to_json, or an empty one. Raises ScriptFailed for another version."""
        if not text:
            return Manifest({})
        fields = json.loads(text)
        if fields.get("version") != MANIFEST_VERSION:
            raise ScriptFailed(
                "The manifest of a sink was written by another version of rmq-spark: "
                f"{text[:200]!r}. Accepted: version {MANIFEST_VERSION}. "
                "Use the version of rmq-spark that wrote it."
            )
        stages = {
            name: {topic: {int(slot): n for slot, n in of.items()} for topic, of in topics.items()}
            for name, topics in fields["stages"].items()
        }
        return Manifest(stages, fields["messages"])


@dataclass(frozen=True)
class Sealed:
    """The batch that a query sealed last: its number, or -1 before the first, and its contents."""

    batch: int = -1
    messages: int | None = None  # None if Redis does not keep the number
    pending: Manifest = field(default_factory=lambda: Manifest({}))  # empty once published


def seal(key: str, batch: int, manifest: Manifest) -> Request[tuple[int, Manifest]]:
    """Fix the contents of a batch. The answer is the batch to publish, and its manifest.

    The first call for a batch fixes its contents. Later calls get the same manifest, or an empty
    one once the batch is published. An earlier batch that is not published yet is returned instead
    of this one. Raises CheckpointRefused if a later batch is sealed.
    """
    args = [batch, manifest.to_json(), manifest.messages]

    def read(replies: list[Any]) -> tuple[int, Manifest]:
        sealed, text = replies[0]
        return sealed, Manifest.from_json(text)

    return Request([Call("seal", [key], args)], read)


def announce(key: str, batch: int, manifest: Manifest, name: str) -> Request[bool]:
    """Announce that a sealed batch is published, before its evidence is checked.

    name: a name that no other announcement has. The answer is False if this manifest is not sealed.
    """
    return Request([Call("announce", [key], [batch, manifest.digest, name])], _yes)


def conclude(key: str, batch: int, name: str, forget_ms: int = FORGET_STAGES_MS) -> Request[bool]:
    """Note that all stages of a sealed batch are published.

    forget_ms: after how long without a batch Redis forgets the sink; 0 for never. The answer is
    False if the announcement of that name is gone: Redis has lost writes since then, or another
    driver is at work.
    """
    return Request([Call("conclude", [key], [batch, name, forget_ms])], _yes)


def unseal(
    key: str, batch: int, manifest: Manifest, forget_ms: int = FORGET_STAGES_MS
) -> Request[bool]:
    """Remove a seal that has lost a stage. False: it is not sealed and unpublished any more."""
    args = [batch, manifest.digest, forget_ms]
    return Request([Call("unseal", [key], args)], _yes)


def last_sealed(key: str) -> Request[Sealed]:
    """Look up the batch sealed last, and its stages that are not noted as published."""

    def read(replies: list[Any]) -> Sealed:
        batch, messages, text = replies[0]
        return Sealed(
            -1 if batch is None else int(batch),
            None if messages is None else int(messages),
            Manifest.from_json(text or b""),
        )

    return Request([("HMGET", key, "batch", "messages", "manifest")], read)


def _yes(replies: list[Any]) -> bool:
    return bool(replies[0])
