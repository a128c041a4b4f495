"""Requests of a sink's driver: seal a batch as a set of stages, and note that it is published.

All of them work on one key, the hash ``sink:<query>``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol.calls import Call, Request

# A query that was not seen for this long is forgotten: its checkpoint is probably deleted.
FORGET_STAGES_MS = 30 * 24 * 3600 * 1000
MANIFEST_VERSION = 2


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
        """Parse a text of to_json; the empty text gives an empty manifest.

        Raises ScriptFailed if another version of rmq-spark wrote it.
        """
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
    """Remove the seal of a batch that has lost a stage, so that it can be staged again.

    forget_ms: as for conclude. The answer is False if this manifest is no longer sealed and
    unpublished.
    """
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
