"""Messages that wait, unseen by consumers, until the batch they belong to is published whole."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.client.messages import SendResult
from rmq_spark.errors import ScriptFailed, StageLost
from rmq_spark.protocol.calls import Call
from rmq_spark.protocol.chunks import chunks, in_parts
from rmq_spark.protocol.messagepack import Pairs, calls_of
from rmq_spark.topics.definition import Keys, TopicDefinition, TopicType, sink_key
from rmq_spark.transport.server import Server

_log = logging.getLogger(__name__)
MESSAGES_A_STAGING = 3900
STAGES_A_DISCARD = 1000
CALLS_A_PIPELINE = 256
# A pipeline of small requests runs in one go; 16 calls of 4096 messages block Redis for 0.2 s.
PUBLISHES_A_PIPELINE = 16
# A query that was not seen for so long has no checkpoint any more that could come back.
FORGET_STAGES_MS = 30 * 24 * 3600 * 1000
MANIFEST_VERSION = 2


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


@dataclass(frozen=True)
class Begun:
    """A registered stage: when it was begun, ms, and how many of its messages were published."""

    ms: int
    published: int = 0

    @staticmethod
    def parse(text: bytes) -> "Begun":
        """Read what the scripts stage and publish wrote."""
        return Begun(*map(int, text.split()))


class Staging:
    """The staged messages of one topic, for all its consumer groups.

    A stage that was published stays registered with the number of its messages: this is the
    evidence that lets a repeated publish tell it from a stage that Redis has forgotten. The sweep
    of a later batch deletes it, for that batch is sealed only when this one is concluded.
    """

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

    def publish(self, totals: Mapping[int, Mapping[str, int]]) -> SendResult:
        """Move stages into the stores: by slot and name, how many messages each was given.

        What was published before adds nothing. Raises StageLost where messages of a stage are
        neither in it nor published.
        """
        new = merged = 0
        left = [
            (slot, name, total)
            for slot, of_slot in totals.items()
            for name, total in of_slot.items()
        ]
        range_merge = int(self._definition.type is TopicType.RANGE_MERGE)
        while left:
            calls = [
                Call(
                    "publish", self._of(slot, name) + self._groups(slot), [name, range_merge, total]
                )
                for slot, name, total in left
            ]
            replies = in_parts(calls, self._server.pipeline, PUBLISHES_A_PIPELINE)
            new += sum(reply[1] for reply in replies)
            merged += sum(reply[2] for reply in replies)
            left = [stage for stage, reply in zip(left, replies, strict=True) if reply[0]]
        return SendResult(new, merged)

    def discard(self, names: Mapping[int, Iterable[str]]) -> int:
        """Deletes stages, by slot. Returns how many lists there were."""
        calls = [
            Call("discard", [self._keys.stages(slot), *self._lists(slot, part)], part)
            for slot, of_slot in names.items()
            for part in chunks(list(of_slot), STAGES_A_DISCARD)
        ]
        return sum(in_parts(calls, self._server.pipeline, CALLS_A_PIPELINE))

    def begun(self, slots: Sequence[int]) -> list[dict[str, Begun]]:
        """The registered stages of each slot, by name. No script: plain reads."""
        reads = [("HGETALL", self._keys.stages(slot)) for slot in slots]
        replies = in_parts(reads, self._server.commands, CALLS_A_PIPELINE)
        return [
            {name.decode(): Begun.parse(text) for name, text in _pairs(reply)} for reply in replies
        ]

    def sweep(
        self,
        slots: Sequence[int],
        query: str,
        batch: int,
        published: Mapping[int, Mapping[str, int]],
    ) -> bool:
        """Delete what a query has staged up to a batch, apart from what was published last.

        published: the totals of the batch, as publish took them. Returns False, and deletes
        nothing, where the evidence for any of them is missing: Redis has forgotten writes.
        """
        registered = dict(zip(slots, self.begun(slots), strict=True))
        if not all(
            registered[slot].get(name, Begun(0)).published == total
            for slot, of_slot in published.items()
            for name, total in of_slot.items()
        ):
            return False
        self.discard(
            {
                slot: leftovers
                for slot, stages in registered.items()
                if (leftovers := _up_to(batch, query, stages.keys() - published.get(slot, {})))
            }
        )
        return True

    def forget(self, slots: Sequence[int]) -> None:
        """Ends stages that were begun more than 30 days ago; their queries do not come back.

        One that its query has sealed is published, as the query was about to do, and its evidence
        stays until the query concludes the batch; others go.
        """
        seconds, _ = self._server.command("TIME")
        end_ms = int(seconds) * 1000 - FORGET_STAGES_MS
        for slot, stages in zip(slots, self.begun(slots), strict=True):
            for name in (name for name, begun in stages.items() if begun.ms <= end_ms):
                book = SinkBook(self._server, StageName.parse(name).query, self._prefix)
                of_topic = book.pending().by_topic().get(self._definition.name, {})
                if name in of_topic.get(slot, {}):
                    self._publish_forgotten(slot, name, of_topic[slot][name])
                else:
                    self.discard({slot: [name]})

    def _publish_forgotten(self, slot: int, name: str, total: int) -> None:
        try:
            self.publish({slot: {name: total}})
        except StageLost as error:  # one query's loss must not end the work for all others
            _log.warning("rmq: a stage of a query that did not come back: %s", error)

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
    """What a batch consists of: by name of a stage, topic and slot, how many messages it holds."""

    stages: Mapping[str, Mapping[str, Mapping[int, int]]]
    messages: int = 0

    def by_topic(self) -> dict[str, dict[int, dict[str, int]]]:
        """How many messages each stage holds, by topic, slot and name."""
        topics: dict[str, dict[int, dict[str, int]]] = {}
        for name, slots_of in self.stages.items():
            for topic, totals in slots_of.items():
                for slot, total in totals.items():
                    topics.setdefault(topic, {}).setdefault(slot, {})[name] = total
        return topics

    @property
    def digest(self) -> str:
        """The SHA-1 of its text in Redis, by which the scripts tell it from another manifest."""
        return hashlib.sha1(self.to_json().encode(), usedforsecurity=False).hexdigest()

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
        stages = {
            name: {topic: {int(slot): n for slot, n in of.items()} for topic, of in topics.items()}
            for name, topics in fields["stages"].items()
        }
        return Manifest(stages, fields["messages"])


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

    def announce(self, batch: int, manifest: Manifest, name: str) -> bool:
        """Announce that all of a sealed batch is published, before the evidence is looked at.

        name: one that no other announcement has. Returns False where it is not sealed like this.
        """
        return bool(self._server.call("announce", [self._key], [batch, manifest.digest, name]))

    def conclude(self, batch: int, name: str) -> bool:
        """Note that everything that a sealed batch consists of is published.

        Returns False where the announcement of that name is gone: Redis fell back meanwhile, or
        another driver is at work.
        """
        return bool(self._server.call("conclude", [self._key], [batch, name, FORGET_STAGES_MS]))

    def unseal(self, batch: int, manifest: Manifest) -> bool:
        """Let a batch of which a stage is lost be staged anew.

        Returns False where this manifest is not sealed and pending any more.
        """
        arguments = [batch, manifest.digest, FORGET_STAGES_MS]
        return bool(self._server.call("unseal", [self._key], arguments))

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


def _up_to(batch: int, query: str, texts: Iterable[str]) -> list[str]:
    names = map(StageName.parse, texts)
    return [str(name) for name in names if name.query == query and name.batch <= batch]


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields and values of a hash, however the client answers."""
    return reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
