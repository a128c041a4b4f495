"""Commands on messages: look, send, recall, bring back, delete, give back."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import (
    Contents,
    FixedTime,
    From,
    Group,
    Json,
    Priority,
    Queues,
    SlotBasis,
    Slots,
    TimeRange,
    Topic,
    Until,
    Yes,
)
from rmq_spark.cli.output import (
    content_json,
    content_text,
    print_json,
    print_table,
    say,
    tell,
    time_text,
    without_none,
)
from rmq_spark.cli.session import broker_of
from rmq_spark.cli.topic_commands import confirm
from rmq_spark.client.messages import Message, requeue_score
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol import reading, sending
from rmq_spark.protocol.pages import Bounds, Entry, Page, QueueKind, first_entries, parse_queues
from rmq_spark.spark.table.selection import Scope
from rmq_spark.spark.table.table_options import parse_slots
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, TopicDefinition, parse_group
from rmq_spark.topics.moments import parse_moment_ms
from rmq_spark.topics.topic_types import TOPIC_TYPES, TopicType

NOTHING_FOUND = 3
LINES_A_SEND = 10_000
MOST_SHOWN = 1_000_000  # all of them are held in memory
Every = Annotated[bool, typer.Option("--all", help="All that --slots, --from, --until choose.")]


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (peek, send, cancel, requeue, purge, expire):
        app.command(command.__name__)(command)


def peek(
    context: typer.Context,
    topic: Topic,
    queues: Queues = QueueKind.STORE.value,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST_SHOWN, help="So many messages.")
    ] = 20,
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Look at messages without taking them, queue by queue and slot by slot.

    With --json one line each.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    found = first_entries(_pages(queue, _scope(queues, slots, since, until)), limit)
    if as_json:
        for entry in found:
            print_json(_entry_json(entry))
    elif found:
        columns = (
            "queue",
            "slot",
            "content",
            "due",
            "priority",
            "retries",
            "held since",
            "by",
            "died",
        )
        print_table(columns, map(_entry_row, found))
    else:
        say("No message matches.")
    if not found:
        raise typer.Exit(NOTHING_FOUND)


def send(
    context: typer.Context,
    topic: Topic,
    contents: Contents = None,
    slot_basis: SlotBasis = None,
    time_range: TimeRange = None,
    priority: Priority = None,
    fixed_time: FixedTime = None,
    as_json: Json = False,
) -> None:
    """Send contents, or the lines of stdin where none is given."""
    broker = broker_of(context)
    queue = broker.queue(topic, group=broker.definition(topic).groups[0])
    value = _value(time_range, priority, fixed_time)
    _check_told(queue.definition, Message(b"", **value), "sent")
    new = merged = 0
    given = map(os.fsencode, contents) if contents else _lines()
    for part in _parts(given):
        sent = queue.send(part, slot_basis=slot_basis, **value)
        new, merged = new + sent.new, merged + sent.merged
    text = f"{topic}: {new:,} new, {merged:,} merged"
    tell(as_json, text, topic=topic, new=new, merged=merged)


def cancel(
    context: typer.Context,
    topic: Topic,
    contents: Annotated[list[str], typer.Argument(help="Contents.", show_default=False)],
    slot_basis: SlotBasis = None,
    group: Annotated[str | None, typer.Option(help="One consumer group; else all.")] = None,
    as_json: Json = False,
) -> None:
    """Recall messages that nobody has claimed yet."""
    broker = broker_of(context)
    groups = broker.definition(topic).groups if group is None else (parse_group(group),)
    cancelled = 0
    for each in groups:
        queue = broker.queue(topic, group=each)
        cancelled += queue.cancel(_by_slot(queue, contents, slot_basis))
    _tell(as_json, topic, cancelled, "recalled")


def requeue(
    context: typer.Context,
    topic: Topic,
    contents: Contents = None,
    every: Every = False,
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    slot_basis: SlotBasis = None,
    time_range: TimeRange = None,
    priority: Priority = None,
    fixed_time: FixedTime = None,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Bring dead messages back as first deliveries; due at once, unless a value says when."""
    queue = broker_of(context).queue(topic, group=parse_group(group))
    value = Message(b"", **_value(time_range, priority, fixed_time))
    if queue.definition.type.requeue_value is None:
        _check_told(queue.definition, value, "brought back")
    score = requeue_score(value, queue.definition, queue.now_ms())
    found: Iterable[dict[int, list[bytes]]]
    if _are_named(contents, every):
        found = [_by_slot(queue, contents or [], slot_basis)]
    else:  # what dies again meanwhile is not brought back again
        pages = _pages(queue, _scope(QueueKind.DEAD, slots, since, until, queue.now_ms()))
        found = ({page.slot: page.contents} for page in pages)
    requeued = 0
    for by_slot in found:
        pairs = {s: [v for c in of_slot for v in (score, c)] for s, of_slot in by_slot.items()}
        requeued += queue.ask(sending.requeue, pairs)
    _tell(as_json, topic, requeued, "brought back")


def purge(
    context: typer.Context,
    topic: Topic,
    contents: Contents = None,
    every: Every = False,
    queues: Annotated[
        str, typer.Option("--queue", help="dead, store or retry.")
    ] = QueueKind.DEAD.value,
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    slot_basis: SlotBasis = None,
    group: Group = DEFAULT_GROUP_TEXT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete messages for good: dead ones, or those that wait in store or retry queue.

    What a consumer holds (prepare) is its own.
    """
    if queues not in (QueueKind.DEAD, QueueKind.STORE, QueueKind.RETRY):
        raise InvalidOption(f"--queue {queues!r} is not accepted. Accepted: dead, store, retry.")
    queue = broker_of(context).queue(topic, group=parse_group(group))
    kind = QueueKind(queues)
    if _are_named(contents, every):
        confirm(f"Delete {len(contents or []):,} messages of the {kind} queue of {topic}?", yes)
        deleted = queue.purge(_by_slot(queue, contents or [], slot_basis), kind)
    else:
        held = sum(queue.ask(reading.sizes, [kind], queue.slots))
        chosen = "all messages" if slots is since is until is None else "the chosen messages"
        confirm(f"Delete {chosen} of the {kind} queue of {topic}, which holds {held:,}?", yes)
        deleted = 0
        for page in _pages(queue, _scope(kind, slots, since, until)):
            pairs = [v for pair in zip(page.scores, page.contents, strict=True) for v in pair]
            deleted += queue.ask(sending.purge, {page.slot: pairs}, kind)
    _tell(as_json, topic, deleted, "deleted")


def expire(
    context: typer.Context,
    topic: Topic,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Give back now what is claimed and whose lease has run out."""
    queue = broker_of(context).queue(topic, group=parse_group(group))
    given_back = queue.expire()
    text = f"{topic}: {given_back:,} messages given back"
    tell(as_json, text, topic=topic, messages=given_back)


def _scope(
    queues: str,
    slots: str | None,
    since: str | None,
    until: str | None,
    before_ms: int | None = None,
) -> Scope:
    """A choice. before_ms: nothing from then on. Raises InvalidOption."""
    times = Bounds(_moment("--from", since), _moment("--until", until))
    return Scope(
        queues=parse_queues(queues),
        slots=None if slots is None else parse_slots(slots),
        times=times.within(None, before_ms),
    )


def _pages(queue: Queue, scope: Scope) -> Iterator[Page]:
    """What a choice finds."""
    for kind in scope.queues:
        scores = scope.scores_of(kind, queue.definition)
        if scores is not None:
            for slot in scope.slots_of(queue.definition):
                yield from queue.pages(kind, slot, scores)


def _moment(name: str, text: str | None) -> int | None:
    """A time in ms since 1970. Raises InvalidOption."""
    return None if text is None else parse_moment_ms(name, text)


def _are_named(contents: list[str] | None, every: bool) -> bool:
    """Whether messages are named, rather than chosen. Raises InvalidOption."""
    if bool(contents) == every:
        raise InvalidOption("Which messages? Accepted: contents, or --all; not both.")
    return bool(contents)


def _by_slot(
    queue: Queue, contents: Iterable[str], slot_basis: str | None
) -> dict[int, list[bytes]]:
    by_slot: dict[int, list[bytes]] = {}
    for content in contents:
        basis = os.fsencode(content if slot_basis is None else slot_basis)
        by_slot.setdefault(queue.definition.slot_of(basis), []).append(os.fsencode(content))
    return by_slot


def _value(time_range: str | None, priority: int | None, fixed_time: str | None) -> dict[str, Any]:
    """The keywords of a send. Raises InvalidOption."""
    given = without_none({"time_range": time_range, "priority": priority, "fixed_time": fixed_time})
    return {
        of_type.keyword: of_type.parse(_flag(of_type), str(given[of_type.keyword]))
        for of_type in TOPIC_TYPES.values()
        if of_type.keyword in given
    }


def _flag(of_type: TopicType) -> str:
    return f"--{of_type.keyword.replace('_', '-')}"


def _check_told(topic: TopicDefinition, message: Message, done: str) -> None:
    """Raises InvalidMessage where nothing gives the value that the topic's type needs."""
    if topic.type.value_in(message) is None:
        raise InvalidMessage(
            f"Topic {topic.name} is {topic.type}. Say {_flag(topic.type)}: "
            f"{topic.type.accepted_text}. Nothing was {done}."
        )


def _lines() -> Iterator[bytes]:
    """The lines of stdin without their ends."""
    for line in sys.stdin.buffer if sys.stdin else ():
        yield line.rstrip(b"\r\n")


def _parts(contents: Iterable[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    for content in contents:
        part.append(content)
        if len(part) == LINES_A_SEND:
            yield part
            part = []
    if part:
        yield part


def _tell(as_json: bool, topic: str, how_many: int, done: str) -> None:
    tell(as_json, f"{topic}: {how_many:,} messages {done}", topic=topic, messages=how_many)
    if not how_many:
        raise typer.Exit(NOTHING_FOUND)


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "queue": entry.queue,
        "slot": entry.slot,
        **content_json(entry.content),
        **without_none(
            {
                "dueTimeMs": entry.due_time_ms,
                "priority": entry.priority,
                "retriesLeft": entry.retries_left,
                "preparedAtMs": entry.prepared_at_ms,
                "diedAtMs": entry.died_at_ms,
                "consumer": entry.consumer,
            }
        ),
    }


def _entry_row(entry: Entry) -> tuple[Any, ...]:
    return (
        entry.queue,
        entry.slot,
        content_text(entry.content),
        time_text(entry.due_time_ms),
        entry.priority,
        entry.retries_left,
        time_text(entry.prepared_at_ms),
        entry.consumer,
        time_text(entry.died_at_ms),
    )
