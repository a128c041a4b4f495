"""The queue of one topic, for services, operators and the connector."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rmq_spark.client import repair
from rmq_spark.client.messages import (
    HeadersGiven,
    Message,
    Outgoing,
    contents_by_slot,
    outgoing,
    requeue_score,
)
from rmq_spark.client.room import OnFull, in_rounds
from rmq_spark.client.tracing import send_span
from rmq_spark.errors import ExclusiveSlot, InvalidOption, TopicFull, UnknownTopic, quoted
from rmq_spark.protocol import reading, sending
from rmq_spark.protocol.calls import Conversation, Read, Request, TopicQueues
from rmq_spark.protocol.claims import ClaimRecord, Figures, Overview
from rmq_spark.protocol.pages import (
    UNBOUNDED,
    Bounds,
    Entry,
    Page,
    Position,
    QueueKind,
    pages_after_each_other,
)
from rmq_spark.protocol.reading import ENTRIES_A_PAGE
from rmq_spark.protocol.sending import SendResult
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.topics.keys import DEFAULT_GROUP, Keys, topics_key
from rmq_spark.topics.parsing import Duration

# Refresh a topic definition older than this before sending: groups come and go, and senders may run
# for months.
DEFINITION_AGE_S = 1.0
# A list of contents, or lists by slot.
Contents = Iterable[bytes | str] | Mapping[int, Sequence[bytes | str]]
_T = TypeVar("_T")
_P = ParamSpec("_P")


class Queue:
    """A topic, and one of its consumer groups, on a server.

    All methods raise an RmqError when they fail. You can safely repeat every call except send,
    cancel and requeue.
    """

    def __init__(
        self,
        server: Server,
        definition: TopicDefinition,
        *,
        key_prefix: str = "",
        group: str | None = DEFAULT_GROUP,
    ) -> None:
        """group: None for a queue to send to, whose other operations need the default group."""
        self._is_of_no_group = group is None and DEFAULT_GROUP not in definition.groups
        group = definition.usual_group if group is None else group
        if group not in definition.groups:
            raise _no_such_group(group, definition)
        self.server = server
        self.key_prefix = key_prefix
        self._use(TopicQueues(definition, Keys(definition.name, key_prefix, group)))

    def _use(self, queues: TopicQueues) -> None:
        self.queues = queues
        self._read_s = time.monotonic()

    def __repr__(self) -> str:
        return f"Queue({self.definition.name}, {self.server!r})"

    @property
    def definition(self) -> TopicDefinition:
        """The topic's definition, as last read."""
        return self.queues.definition

    @property
    def keys(self) -> Keys:
        """The keys of the topic in this consumer group."""
        return self.queues.keys

    @property
    def slots(self) -> range:
        """All slots of the topic."""
        return self.queues.slots

    @property
    def is_paused(self) -> bool:
        """Whether this consumer group gets no messages, by the definition as last read."""
        return self.definition.is_paused(self.keys.group)

    def of_group(self, group: str) -> Self:
        """Return the queue of another consumer group. Raises InvalidOption for an unknown one."""
        return type(self)(self.server, self.definition, key_prefix=self.key_prefix, group=group)

    def _refuse_no_group(self) -> None:
        if self._is_of_no_group:
            raise _no_such_group(DEFAULT_GROUP, self.definition)

    # -- senders

    def send(
        self,
        messages: Iterable[Message | bytes | str],
        *,
        slot_basis: bytes | str | None = None,
        time_range: Duration | None = None,
        priority: int | None = None,
        fixed_time: int | datetime | None = None,
        delay: Duration | None = None,
        headers: HeadersGiven | None = None,
        time_to_live: Duration | None = None,
        expires_at: int | datetime | None = None,
        past_fixed_time: str = "send",
    ) -> SendResult:
        """Send messages. The keywords supply the values that a message lacks.

        All messages are checked before the first is sent. They go to all consumer groups that the
        topic had a second ago. A delay counts from when Redis stores a message. With
        past_fixed_time="fail", a fixed time that is not after Redis' time is refused. After a
        broken connection, a message may be sent a second time; it merges with the first copy unless
        that one was consumed in the meantime. If OpenTelemetry's current span is recording, the
        call is a span, and its context is added to the headers. Raises InvalidMessage,
        InvalidOption, UnknownTopic, and TopicFull if slots have no room for messages.
        """
        if past_fixed_time not in ("send", "fail"):
            raise InvalidOption(
                f"past_fixed_time={quoted(past_fixed_time)} is not accepted. Accepted: send, fail."
            )
        self._refresh_or_refuse()
        refuse = past_fixed_time == "fail" and self.definition.type.can_be_past
        defaults = Message(
            slot_basis=slot_basis,
            time_range=time_range,
            priority=priority,
            fixed_time=fixed_time,
            delay=delay,
            headers=headers,
            time_to_live=time_to_live,
            expires_at=expires_at,
        )
        topic = self.definition
        with send_span(topic.name) as span:
            checked = outgoing(
                messages, defaults, topic, now_ms=self.now_ms, refuse_past=refuse, span=span
            )
            if span is not None:
                span.count(sum(map(len, checked.pairs.values())) // 2)
            return self.send_checked(checked, topic)

    def send_checked(
        self, checked: Outgoing, topic: TopicDefinition, on_full: OnFull | None = None
    ) -> SendResult:
        """Send messages that were checked for a definition of the topic.

        on_full: what to do about a slot without room; None to raise TopicFull when all others have
        got theirs. Without limits, there is one round trip, as long as there is a call at least
        every half second. Raises UnknownTopic, TopicFull.
        """
        self._refresh_or_refuse()
        queues = self._queues_for(topic)
        if not queues.definition.shares:
            return self._send(queues, checked)
        parts = sending.parts_of(queues.definition, *checked)
        sent = SendResult(0, 0)
        try:
            for _, counts in in_rounds(self, parts, partial(self._send_parts, topic), on_full):
                sent += counts
        except TopicFull as full:
            full.sent = sent
            raise
        except UnknownTopic:
            if sent == SendResult(0, 0):
                raise
            raise UnknownTopic(
                f"The topic {topic.name} was deleted while messages were sent to it. Those that "
                "had been sent are deleted with it; the others were not sent."
            ) from None
        return sent

    def _send_parts(
        self, topic: TopicDefinition, parts: Mapping[int, sending.Part]
    ) -> dict[int, SendResult | TopicFull]:
        self._refresh_or_refuse()
        request = sending.send_parts(self._queues_for(topic), list(parts.items()))
        return dict(zip(parts, self.server.ask(request), strict=True))

    def _send(self, queues: TopicQueues, checked: Outgoing) -> SendResult:
        request = sending.send(queues, *checked)
        if time.monotonic() - self._read_s >= DEFINITION_AGE_S / 2:
            request = self._with_refresh(request)
        return self.server.ask(request)

    def _queues_for(self, topic: TopicDefinition) -> TopicQueues:
        """Return what to send to. Raises UnknownTopic if it takes other messages than a topic."""
        queues = self.queues  # another thread may learn of another definition at any time
        if not queues.definition.takes_messages_of(topic):
            raise UnknownTopic(
                f"The topic {topic.name} was deleted, and created in another way. None of these "
                "messages was sent. Send them again."
            )
        return queues

    def distrust(self) -> None:
        """Read the definition again before the next send: another process has read it, earlier."""
        self._read_s = -math.inf

    def _refresh_or_refuse(self) -> None:
        if not self.refresh():
            name = self.definition.name
            raise UnknownTopic(f"The topic {name} was deleted. None of these messages was sent.")

    def refresh(self) -> bool:
        """Refresh an old definition of the topic. Return False if the topic was deleted."""
        is_young = time.monotonic() - self._read_s < DEFINITION_AGE_S
        if is_young and self._read_s > self.server.topics_changed_s:
            return True
        return self._learn(self.server.command(*self._reading_definition()))

    def _with_refresh(self, request: Request[_T]) -> Request[_T]:
        """Read the definition in the same round trip, for the next send."""

        def parse(replies: list[Any]) -> _T:
            self._learn(replies[-1])
            return request.parse(replies[:-1])

        calls = [*request.calls, self._reading_definition()]
        return replace(request, calls=calls, parse=parse)

    def _reading_definition(self) -> Read:
        return ("HGET", topics_key(self.key_prefix), self.definition.name)

    def _learn(self, text: bytes | None) -> bool:
        if text:
            definition = TopicDefinition.from_json(self.definition.name, text)
            self._use(TopicQueues(definition, self.keys))
        return bool(text)

    # -- operators

    def cancel(self, contents: Contents, *, slot_basis: bytes | str | None = None) -> int:
        """Remove contents that no consumer of this group has claimed yet. Return their number.

        contents: texts or bytes, in a keyed topic keys; a list, or lists by slot such as
        ``{3: [b"abc"]}``. slot_basis: the one with which all contents of a list were sent; None if
        they were sent without. Raises InvalidMessage, and InvalidOption for a slot that does not
        exist.
        """
        self._refuse_no_group()
        by_slot = contents_by_slot(contents, slot_basis, self.definition, "cancelled")
        return self.ask(sending.cancel, by_slot)

    def accept_again(self, contents: Contents, *, slot_basis: bytes | str | None = None) -> int:
        """Let the topic accept contents again within unique_for. Return how many it had noted.

        contents, slot_basis: as for cancel. Raises InvalidMessage, InvalidOption.
        """
        by_slot = contents_by_slot(contents, slot_basis, self.definition)
        commands = [("ZREM", self.keys.recent(slot), *names) for slot, names in by_slot.items()]
        return sum(self.server.commands(commands))

    def move(
        self,
        contents: Contents,
        *,
        slot_basis: bytes | str | None = None,
        time_range: Duration | None = None,
        priority: int | None = None,
        fixed_time: int | datetime | None = None,
        delay: Duration | None = None,
    ) -> int:
        """Give contents that wait another due time or priority. Return how many have it.

        They keep their payloads, headers and retries. contents, slot_basis: as for cancel. Without
        a value they are due at once; a Priority topic needs a priority, and leaves messages alone
        that were rolled back. Messages that a consumer holds, and dead ones, stay. Raises
        InvalidMessage, InvalidOption.
        """
        self._refuse_no_group()
        value = Message(b"", slot_basis, time_range, priority, fixed_time, delay)
        score = requeue_score(value, self.definition, self.now_ms(), "moved")
        by_slot = contents_by_slot(contents, slot_basis, self.definition, "moved")
        return self.ask(sending.move, by_slot, score)

    def requeue(
        self,
        contents: Contents,
        *,
        slot_basis: bytes | str | None = None,
        time_range: Duration | None = None,
        priority: int | None = None,
        fixed_time: int | datetime | None = None,
        delay: Duration | None = None,
    ) -> int:
        """Requeue contents from the dead queue as first deliveries. Return how many were there.

        contents, slot_basis: as for cancel. The messages are due at once unless you give a value; a
        Priority topic needs a priority. Raises InvalidMessage, InvalidOption.
        """
        self._refuse_no_group()
        value = Message(b"", slot_basis, time_range, priority, fixed_time, delay)
        score = requeue_score(value, self.definition, self.now_ms())
        by_slot = contents_by_slot(contents, slot_basis, self.definition, "requeued")
        return repair.requeue(self, by_slot, score)

    def purge(
        self,
        contents: Contents,
        kind: QueueKind | str = QueueKind.DEAD,
        *,
        slot_basis: bytes | str | None = None,
    ) -> int:
        """Delete contents from one queue for good. Return how many were there.

        contents, slot_basis: as for cancel. kind: a QueueKind or its text; not PREPARE. Raises
        InvalidOption.
        """
        self._refuse_no_group()
        of_kind = QueueKind(kind)
        by_slot = contents_by_slot(contents, slot_basis, self.definition, "purged")
        return repair.purge(self, of_kind, by_slot)

    def expire(self, slots: Iterable[int] | None = None) -> int:
        """Give back all claims whose lease has expired. Return the number of messages.

        slots: None for all. Also deletes dead messages whose retention has ended, forgets consumers
        that were not seen for 30 days, and publishes or deletes the stages of sinks that were begun
        more than 30 days ago.
        """
        self._refuse_no_group()
        return repair.sweep(self, slots).given_back

    # -- readers

    def figures(self) -> Figures:
        """Return the sizes of all queues and the counters, summed up over all slots."""
        self._refuse_no_group()
        return overview_of(self).figures

    def find(self, contents: Contents, *, slot_basis: bytes | str | None = None) -> list[Entry]:
        """Find messages in all queues: the store, claims (prepare), the retry and the dead queue.

        contents: a list, or lists by slot; in a keyed topic, keys. slot_basis: the one with which
        all contents of a list were sent; None looks into all slots. Returns one entry for each
        copy, slot by slot. ``entry.queue`` is where it is, ``entry.consumer`` who holds it. Raises
        InvalidMessage, InvalidOption.
        """
        self._refuse_no_group()
        by_slot = contents_by_slot(contents, slot_basis, self.definition)
        if slot_basis is None and not isinstance(contents, Mapping):
            names = [name for of_slot in by_slot.values() for name in of_slot]
            by_slot = dict.fromkeys(self.slots, names)
        found = self.ask(reading.find, by_slot)
        return [entry for copies in found for page in copies for entry in page.entries()]

    def pages(self, kind: QueueKind | str, slot: int, scores: Bounds = UNBOUNDED) -> Iterator[Page]:
        """Yield one queue of one slot page by page. A message that stays in it comes once.

        kind: a QueueKind or its text. scores: the range to read. Raises InvalidOption for a slot or
        kind that does not exist.
        """
        self._refuse_no_group()
        self.definition.check_slot(slot)
        return walk(self, QueueKind(kind), slot, scores)

    def now_ms(self) -> int:
        """Return Redis' time in ms since 1970."""
        return self.server.now_ms()

    # -- any request

    def ask(
        self,
        build: Callable[Concatenate[TopicQueues, _P], Request[_T] | Conversation[_T]],
        *args: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        """Build a request of rmq_spark.protocol for these queues, run it, and return its answer.

        A conversation counts as a request.
        """
        try:
            return self.server.ask(build(self.queues, *args, **keywords))
        except ExclusiveSlot:  # perhaps of an owner whose batch was in progress at the change
            # These import this module.
            from rmq_spark.client.administration import Administration, forget_epochs

            broker = Administration(self.server, key_prefix=self.key_prefix)
            if not forget_epochs(broker, self.definition):
                raise
            return self.server.ask(build(self.queues, *args, **keywords))


def _no_such_group(group: str, topic: TopicDefinition) -> InvalidOption:
    return InvalidOption(
        f"group={group_text(group)!r} is not a consumer group of topic {topic.name}. "
        f"Accepted: {', '.join(map(group_text, topic.groups))}."
        f"{' Name one of them.' if group == DEFAULT_GROUP else ''}",
        name="group",
    )


def overview_of(queue: Queue) -> Overview:
    """Return the figures of a queue, and the consumers that Redis remembers."""
    return queue.ask(reading.overview, one_node=not queue.server.is_cluster)


def walk(
    queue: Queue,
    kind: QueueKind,
    slot: int,
    scores: Bounds = UNBOUNDED,
    after: Position | None = None,
    most: int = ENTRIES_A_PAGE,
) -> Iterator[Page]:
    """Yield one queue of one slot in pages of at most ``most`` entries; the oldest claim first.

    scores: of a prepare queue, they bound the times of its claims. after: a message of this slot to
    continue after; if its claim is gone, begins at the first claim.
    """
    if kind is not QueueKind.PREPARE:
        yield from walk_part(queue, kind, slot, scores, None, after, most)
        return
    claims = queue.ask(reading.records, slot)
    names = [claim.name for claim in claims]
    first = names.index(after.claim) if after is not None and after.claim in names else 0
    for claim in claims[first:]:
        if claim.held and scores.includes(claim.made_ms):
            begin = after if after is not None and after.claim == claim.name else None
            yield from walk_part(queue, kind, slot, UNBOUNDED, claim, begin, most)


def walk_part(
    queue: Queue,
    kind: QueueKind,
    slot: int,
    scores: Bounds = UNBOUNDED,
    claim: ClaimRecord | None = None,
    after: Position | None = None,
    most: int = ENTRIES_A_PAGE,
) -> Iterator[Page]:
    """Yield the pages of a slot's queue, or of one claim of its prepare queue."""
    return pages_after_each_other(
        lambda at: queue.ask(reading.page, kind, slot, scores, at, claim, most),
        None if after is None else (after.score, after.name),
    )
