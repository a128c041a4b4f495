"""Messages that wait, unseen by consumers, until the batch they belong to is published whole."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.queue.errors import ScriptFailed
from rmq_spark.queue.messages import SendResult
from rmq_spark.queue.packed import Pairs, calls_of
from rmq_spark.queue.parts import chunks, in_parts
from rmq_spark.queue.server import Call, Server
from rmq_spark.queue.topic import Keys, TopicDefinition, TopicType, sink_key

MESSAGES_A_STAGING = 3900
STAGES_A_DISCARD = 1000
CALLS_A_PIPELINE = 256
# A pipeline of small requests runs in one go; 16 calls of 4096 messages block Redis for 0.2 s.
PUBLISHES_A_PIPELINE = 16
# A query that was not seen for so long has no checkpoint any more that could come back.
FORGET_STAGES_MS = 30 * 24 * 3600 * 1000
MANIFEST_VERSION = 1


@dataclass(frozen=True)
class StageName:
    """What one attempt of one task staged. Its attempt is a name that nobody else ever has."""

    query: str
    batch: int
    partition: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.query}:{self.batch}:{self.partition}:{self.attempt}"

    @staticmethod
    def parse(text: str) -> "StageName":
        """Reads what str made."""
        query, batch, partition, attempt = text.split(":")
        return StageName(query, int(batch), int(partition), attempt)


class Staging:
    """The staged messages of one topic, for all its consumer groups."""

    def __init__(self, server: Server, definition: TopicDefinition, key_prefix: str = "") -> None:
        self._server = server
        self._definition = definition
        self._prefix = key_prefix
        self._keys = Keys(definition.name, key_prefix)

    def stage(self, name: str, by_slot: Mapping[int, Pairs], held: dict[int, int]) -> None:
        """Appends messages to a stage: by slot, score, content, score, content, ...

        held: by slot, messages that the stage holds; brought up to date. Raises ServerFull, and
        StageLost where the stage holds something else.
        """
        parts = {slot: calls_of(pairs, MESSAGES_A_STAGING) for slot, pairs in by_slot.items()}
        # One part a slot in each pipeline: within one, calls may change places.
        for at in range(max(map(len, parts.values()), default=0)):
            now = {slot: of_slot[at] for slot, of_slot in parts.items() if at < len(of_slot)}
            calls = [
                Call(
                    "stage", self._of(slot, name), [name, held.get(slot, 0), len(pairs) // 2], pairs
                )
                for slot, pairs in now.items()
            ]
            held.update(zip(now, self._server.pipeline(calls), strict=True))

    def publish(self, names: Mapping[int, Iterable[str]]) -> SendResult:
        """Moves stages, by slot, into the stores. What is there no more was published before."""
        new = merged = 0
        left = [(slot, name) for slot, of_slot in names.items() for name in of_slot]
        range_merge = int(self._definition.type is TopicType.RANGE_MERGE)
        while left:
            calls = [
                Call("publish", self._of(slot, name) + self._groups(slot), [name, range_merge])
                for slot, name in left
            ]
            replies = in_parts(calls, self._server.pipeline, PUBLISHES_A_PIPELINE)
            new += sum(reply[1] for reply in replies)
            merged += sum(reply[2] for reply in replies)
            left = [stage for stage, reply in zip(left, replies, strict=True) if reply[0]]
        return SendResult(new, merged)

    def discard(self, names: Mapping[int, Sequence[str]]) -> int:
        """Deletes stages, by slot. Returns how many lists there were."""
        calls = [
            Call("discard", [self._keys.stages(slot), *self._lists(slot, part)], part)
            for slot, of_slot in names.items()
            for part in chunks(of_slot, STAGES_A_DISCARD)
        ]
        return sum(in_parts(calls, self._server.pipeline, CALLS_A_PIPELINE))

    def begun(self, slots: Sequence[int]) -> list[dict[str, int]]:
        """The stages of each slot, by name, and when each was begun, ms. No script: plain reads."""
        reads = [("HGETALL", self._keys.stages(slot)) for slot in slots]
        replies = in_parts(reads, self._server.commands, CALLS_A_PIPELINE)
        return [{name.decode(): int(ms) for name, ms in _pairs(reply)} for reply in replies]

    def sweep(self, slots: Sequence[int], query: str, batch: int) -> int:
        """Deletes what a query has staged up to a batch; to be called once that is published."""
        return self.discard(
            {
                slot: leftovers
                for slot, stages in zip(slots, self.begun(slots), strict=True)
                if (leftovers := [name for name in stages if _is_up_to(name, query, batch)])
            }
        )

    def forget(self, slots: Sequence[int]) -> None:
        """Ends stages that were begun more than 30 days ago; their queries do not come back.

        One that its query has sealed is published, as the query was about to do; others go.
        """
        seconds, _ = self._server.command("TIME")
        end_ms = int(seconds) * 1000 - FORGET_STAGES_MS
        for slot, stages in zip(slots, self.begun(slots), strict=True):
            for name in (name for name, begun_ms in stages.items() if begun_ms <= end_ms):
                book = SinkBook(self._server, StageName.parse(name).query, self._prefix)
                if name in book.pending():
                    self.publish({slot: [name]})
                else:
                    self.discard({slot: [name]})

    def _of(self, slot: int, name: str) -> list[str]:
        return [self._keys.stage(slot, name), self._keys.stages(slot)]

    def _lists(self, slot: int, names: Sequence[str]) -> list[str]:
        return [self._keys.stage(slot, name) for name in names]

    def _groups(self, slot: int) -> list[str]:
        names = [
            Keys(self._definition.name, self._prefix, group) for group in self._definition.groups
        ]
        return [key for of in names for key in (of.store(slot), of.retry(slot), of.stats(slot))]


@dataclass(frozen=True)
class Manifest:
    """What a batch consists of: by name of a stage, by topic, the slots it has messages in."""

    stages: Mapping[str, Mapping[str, Sequence[int]]]
    messages: int = 0

    def __contains__(self, name: str) -> bool:
        return name in self.stages

    def by_topic(self) -> dict[str, dict[int, list[str]]]:
        """The names of the stages, by topic and slot."""
        topics: dict[str, dict[int, list[str]]] = {}
        for name, slots_of in self.stages.items():
            for topic, slots in slots_of.items():
                for slot in slots:
                    topics.setdefault(topic, {}).setdefault(slot, []).append(name)
        return topics

    def to_json(self) -> str:
        """The form that Redis keeps under ``sink:<query>``."""
        fields = {"version": MANIFEST_VERSION, "stages": self.stages, "messages": self.messages}
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        """Reads what to_json wrote; of no text, a manifest of nothing. Raises ScriptFailed."""
        if not text:
            return Manifest({})
        fields = json.loads(text)
        if fields.get("version") != MANIFEST_VERSION:
            raise ScriptFailed(
                "What a sink has sealed was written by another version of rmq-spark: "
                f"{text[:200]!r}"
            )
        return Manifest(fields["stages"], fields.get("messages", 0))


@dataclass(frozen=True)
class Sealed:
    """The batch that a query sealed last: its number, -1 if there is none, and what it held."""

    batch: int = -1
    messages: int | None = None  # where the version that sealed it kept the number
    pending: Manifest = field(default_factory=lambda: Manifest({}))  # of nothing once published


class SinkBook:
    """Which batch a streaming query has sealed last, and what of it is still to be published."""

    def __init__(self, server: Server, query: str, key_prefix: str = "") -> None:
        self._server = server
        self._key = sink_key(query, key_prefix)

    def seal(self, batch: int, manifest: Manifest) -> tuple[int, Manifest]:
        """Decides what a batch consists of, once: returns the batch to publish, and what it is.

        The manifest is that of the first caller, and empty once it is published. An earlier batch
        that is not published yet comes first. Raises CheckpointRefused when a later one is sealed.
        """
        arguments = [batch, manifest.to_json(), manifest.messages]
        sealed, text = self._server.call("seal", [self._key], arguments)
        return sealed, Manifest.from_json(text)

    def conclude(self, batch: int) -> None:
        """Everything that a sealed batch consists of is published."""
        self._server.call("conclude", [self._key], [batch, FORGET_STAGES_MS])

    def last(self) -> Sealed:
        """The batch sealed last. No script: a plain read."""
        reply = self._server.command("HMGET", self._key, "batch", "messages", "manifest")
        batch, messages, text = reply
        return Sealed(
            -1 if batch is None else int(batch),
            None if messages is None else int(messages),
            Manifest.from_json(text or b""),
        )

    def pending(self) -> Manifest:
        """What is sealed and not noted as published. No script: a plain read."""
        return Manifest.from_json(self._server.command("HGET", self._key, "manifest") or b"")


def _is_up_to(text: str, query: str, batch: int) -> bool:
    name = StageName.parse(text)
    return name.query == query and name.batch <= batch


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields and values of a hash, however the client answers."""
    return reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
