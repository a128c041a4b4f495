"""Which messages of a round their topics take, and the stage that holds these."""

import logging
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmq_spark.client.broker import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.messages import Message, Outgoing, outgoing
from rmq_spark.client.queue import Queue
from rmq_spark.client.staging import Staging
from rmq_spark.errors import InvalidMessage, InvalidOption, RmqError, UnknownTopic
from rmq_spark.outbox.rows import Row
from rmq_spark.protocol.sealing import Manifest
from rmq_spark.protocol.stages import StageName

# What an error says of a message among others; a refused row is alone.
_OF_A_LIST = re.compile(r"^Message \d+( of topic \S+)?: | Nothing was sent\.$")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Staged:
    """What was staged of a round, and what is refused."""

    manifest: Manifest
    refused: list[tuple[Row, str]]


class RoundStages:
    """Stages the rounds of one outbox.

    name: the outbox's name in Redis. topic: of rows that name none. defaults: the values that
    messages lack.
    """

    def __init__(
        self, broker: Broker, sink: StagedSink, name: str, topic: str | None, defaults: Message
    ) -> None:
        self._broker = broker
        self._sink = sink
        self._name = name
        self._topic = topic
        self._defaults = defaults

    def stage(self, number: int, rows: Iterable[Row], *, is_taken_up: bool) -> Staged:
        """Stage the messages of a round that their topics take; if that fails, delete them again.

        is_taken_up: whether relays that ended may have left stages of the round. They are deleted:
        a full server has no room for several.
        """
        name = str(StageName(self._name, number, 0, uuid.uuid4().hex))
        by_topic: dict[str | None, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic or self._topic, []).append(row)
        held: dict[str, dict[int, int]] = {}
        refused: list[tuple[Row, str]] = []
        try:
            for topic, of_topic in by_topic.items():
                queue, reason = self._queue(topic)
                if queue is None:
                    refused += [(row, reason) for row in of_topic]
                    continue
                pairs, bodies = self._checked(queue, of_topic, refused)
                of_slots = held.setdefault(queue.definition.name, dict.fromkeys(pairs, 0))
                staging = Staging(queue.server, queue.definition, queue.key_prefix)
                if is_taken_up:
                    staging.sweep(queue.slots, self._name, number, {})
                staging.stage(name, pairs, of_slots, bodies)
        except Exception:
            self._discard(_manifest(name, held))
            raise
        return Staged(_manifest(name, held), refused)

    def _discard(self, manifest: Manifest) -> None:
        """Delete stages after an error, which a second one must not hide."""
        try:
            self._sink.discard(manifest)
        except RmqError as error:
            _log.warning("rmq: outbox: staged messages stay until the next round: %s", error)

    def _queue(self, topic: str | None) -> tuple[Queue | None, str]:
        """Return the queue of a topic, or why there is none."""
        if topic is None:
            return None, "topic is null, and the relay names none."
        try:
            return self._broker.queue(topic), ""
        except (UnknownTopic, InvalidOption) as error:
            return None, str(error)

    def _checked(
        self, queue: Queue, rows: Sequence[Row], refused: list[tuple[Row, str]]
    ) -> Outgoing:
        """Return the messages that a topic takes, by slot; add the others to refused."""
        good = [row for row in rows if row.reason is None]
        refused += [(row, row.reason) for row in rows if row.reason is not None]
        try:
            return self._outgoing(queue, good)
        except InvalidMessage:
            taken = []
            for row in good:
                try:
                    self._outgoing(queue, [row])
                except InvalidMessage as error:
                    refused.append((row, _reason(error)))
                else:
                    taken.append(row)
        return self._outgoing(queue, taken)

    def _outgoing(self, queue: Queue, rows: Sequence[Row]) -> Outgoing:
        messages = [row.message for row in rows]
        return outgoing(messages, self._defaults, queue.definition, now_ms=queue.now_ms)


def _manifest(name: str, held: dict[str, dict[int, int]]) -> Manifest:
    messages = sum(sum(slots.values()) for slots in held.values())
    return Manifest({name: held} if held else {}, messages)


def _reason(error: InvalidMessage) -> str:
    return _OF_A_LIST.sub("", str(error))
