"""Requests of a sink's driver: which batch is sealed, of which stages, and what is published.

They concern the hash ``sink:<query>``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol.calls import Call, Request

# A query that was not seen for so long has no checkpoint any more that could come back.
FORGET_STAGES_MS = 30 * 24 * 3600 * 1000
MANIFEST_VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """What a batch consists of: by name of a stage, topic and slot, how many messages it holds."""

    stages: Mapping[str, Mapping[str, Mapping[int, int]]]
    messages: int = 0

    def by_topic(self) -> dict[str, dict[int, dict[str, int]]]:
        """Return how many messages each stage holds, by topic, slot and name."""
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
        """Return the form that Redis keeps under ``sink:<query>``."""
        fields = {"version": MANIFEST_VERSION, "stages": self.stages, "messages": self.messages}
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        """Read what to_json wrote; of no text, a manifest of nothing. Raises ScriptFailed."""
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


def seal(key: str, batch: int, manifest: Manifest) -> Request[tuple[int, Manifest]]:
    """Decide what a batch consists of, once; answer the batch to publish, and what it is.

    The manifest is that of the first caller, and empty once it is published. An earlier batch that
    is not published yet comes first. Raises CheckpointRefused when a later one is sealed.
    """
    args = [batch, manifest.to_json(), manifest.messages]

    def read(replies: list[Any]) -> tuple[int, Manifest]:
        sealed, text = replies[0]
        return sealed, Manifest.from_json(text)

    return Request([Call("seal", [key], args)], read)


def announce(key: str, batch: int, manifest: Manifest, name: str) -> Request[bool]:
    """Announce that all of a sealed batch is published, before the evidence is looked at.

    name: one that no other announcement has. Answers False where it is not sealed like this.
    """
    return Request([Call("announce", [key], [batch, manifest.digest, name])], _yes)


def conclude(key: str, batch: int, name: str) -> Request[bool]:
    """Note that everything that a sealed batch consists of is published.

    Answers False where the announcement of that name is gone: Redis fell back meanwhile, or another
    driver is at work.
    """
    return Request([Call("conclude", [key], [batch, name, FORGET_STAGES_MS])], _yes)


def unseal(key: str, batch: int, manifest: Manifest) -> Request[bool]:
    """Let a batch of which a stage is lost be staged anew.

    Answers False where this manifest is not sealed and pending any more.
    """
    args = [batch, manifest.digest, FORGET_STAGES_MS]
    return Request([Call("unseal", [key], args)], _yes)


def last_sealed(key: str) -> Request[Sealed]:
    """Look up the batch sealed last, and what of it is not noted as published."""

    def read(replies: list[Any]) -> Sealed:
        batch, messages, text = replies[0]
        return Sealed(
            -1 if batch is None else int(batch),
            None if messages is None else int(messages),
            Manifest.from_json(text or b""),
        )

    return Request((), read, [("HMGET", key, "batch", "messages", "manifest")])


def _yes(replies: list[Any]) -> bool:
    return bool(replies[0])
