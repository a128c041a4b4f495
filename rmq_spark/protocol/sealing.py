"""Requests of a sink's driver: seal a batch as a set of stages, and note that it is published.

The key is the hash ``sink:<query>``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol.calls import Call, Request

# After so long, a query's checkpoint is taken to be gone for good.
FORGET_STAGES_MS = 30 * 24 * 3600 * 1000
MANIFEST_VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """The contents of a batch: messages by name of a stage, topic and slot."""

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
        """The SHA-1 of the manifest's text in Redis, by which scripts distinguish manifests."""
        return hashlib.sha1(self.to_json().encode(), usedforsecurity=False).hexdigest()

    def to_json(self) -> str:
        """Return the form that Redis keeps under ``sink:<query>``."""
        fields = {"version": MANIFEST_VERSION, "stages": self.stages, "messages": self.messages}
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        """Read what to_json wrote; the empty text is an empty manifest. Raises ScriptFailed."""
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
    """The batch that a query sealed last: its number, or -1 for none, and its contents."""

    batch: int = -1
    messages: int | None = None  # where the version that sealed it kept the number
    pending: Manifest = field(default_factory=lambda: Manifest({}))  # of nothing once published


def seal(key: str, batch: int, manifest: Manifest) -> Request[tuple[int, Manifest]]:
    """Fix the contents of a batch, once; answer the batch to publish, and its manifest.

    The manifest is that of the first caller, and empty once it is published. An earlier batch that
    is not published yet comes first. Raises CheckpointRefused when a later one is sealed.
    """
    args = [batch, manifest.to_json(), manifest.messages]

    def read(replies: list[Any]) -> tuple[int, Manifest]:
        sealed, text = replies[0]
        return sealed, Manifest.from_json(text)

    return Request([Call("seal", [key], args)], read)


def announce(key: str, batch: int, manifest: Manifest, name: str) -> Request[bool]:
    """Announce that all of a sealed batch is published, before the evidence is checked.

    name: a name that no other announcement has. Answers False where this manifest is not sealed.
    """
    return Request([Call("announce", [key], [batch, manifest.digest, name])], _yes)


def conclude(key: str, batch: int, name: str) -> Request[bool]:
    """Note that all stages of a sealed batch are published.

    Answers False where the announcement of that name is gone: Redis fell back meanwhile, or another
    driver is at work.
    """
    return Request([Call("conclude", [key], [batch, name, FORGET_STAGES_MS])], _yes)


def unseal(key: str, batch: int, manifest: Manifest) -> Request[bool]:
    """Let a batch that has lost a stage be staged anew.

    Answers False where this manifest is not sealed and pending any more.
    """
    args = [batch, manifest.digest, FORGET_STAGES_MS]
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

    return Request((), read, [("HMGET", key, "batch", "messages", "manifest")])


def _yes(replies: list[Any]) -> bool:
    return bool(replies[0])
