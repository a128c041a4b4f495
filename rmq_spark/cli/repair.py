"""Commands that repair queues: cancel, move, requeue, purge, expire."""

from typing import Annotated, Any

import typer

from rmq_spark.cli import arguments
from rmq_spark.cli.arguments import (
    encoded,
    encoded_basis,
    given_values,
    named_by_slot,
    option_help,
    pages_of,
    parse_values,
    print_count,
    remark_on_keys,
    times_of,
)
from rmq_spark.cli.output import confirm, print_remark, print_result
from rmq_spark.cli.session import broker_of, queue_of
from rmq_spark.client import repair
from rmq_spark.client.messages import Message, requeue_score
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption, ServerRefused
from rmq_spark.inspect.checks import denial_of, permission_remedy
from rmq_spark.inspect.fields import count_text, messages_text
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, group_text, parse_group
from rmq_spark.topics.parsing import Option, choice

PURGED = Option(
    "--queue",
    choice(QueueKind.DEAD, QueueKind.STORE, QueueKind.RETRY),
    "The queue",
    default=QueueKind.DEAD,
)
_FIND = (
    "To see where they are, use rmq find; if they were sent with a slot basis, add --slot-basis."
)


def cancel(
    context: typer.Context,
    topic: arguments.Topic,
    contents: Annotated[list[str], typer.Argument(help=arguments.NAMES_HELP, show_default=False)],
    slot_basis: arguments.SlotBasis = None,
    group: Annotated[
        str | None, typer.Option(help="Only for this consumer group, instead of all.")
    ] = None,
    as_json: arguments.Json = False,
) -> None:
    """Cancel messages that no consumer has claimed yet."""
    broker = broker_of(context)
    definition = broker.definition(topic)
    groups = definition.groups if group is None else (parse_group(group),)
    basis = encoded_basis(slot_basis)
    cancelled = sum(
        broker.queue(topic, group=each).cancel(encoded(contents), slot_basis=basis)
        for each in groups
    )
    if not cancelled:
        where = "any group" if group is None else "this group"
        print_remark(f"None of them waits in {where}. {_FIND}")
        remark_on_keys(definition)
    print_count(as_json, topic, cancelled, "cancelled")


def move(
    context: typer.Context,
    topic: arguments.Topic,
    contents: Annotated[list[str], typer.Argument(help=arguments.NAMES_HELP, show_default=False)],
    slot_basis: arguments.SlotBasis = None,
    time_range: arguments.TimeRange = None,
    priority: arguments.Priority = None,
    fixed_time: arguments.FixedTime = None,
    delay: arguments.Delay = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Give waiting messages another due time or priority.

    They are due at once unless an option sets a time or a delay. A Priority topic needs --priority.
    They keep what they carry, and their retries.
    """
    queue = queue_of(context, topic, group)
    given = given_values(time_range, priority, fixed_time, delay)
    needed = queue.definition.type.requeue_value is None
    values: dict[str, Any] = {**parse_values(queue, given, "moved", needed=needed)}
    moved = queue.move(encoded(contents), slot_basis=encoded_basis(slot_basis), **values)
    if not moved:
        print_remark(f"None of them waits in this group. {_FIND}")
        remark_on_keys(queue.definition)
    where = f" in the group {group}" if len(queue.definition.groups) > 1 else ""
    print_count(as_json, topic, moved, f"moved{where}", group=group_text(queue.keys.group))


def requeue(
    context: typer.Context,
    topic: arguments.Topic,
    contents: arguments.Names = None,
    every: arguments.Every = False,
    slots: arguments.Slots = None,
    since: arguments.From = None,
    until: arguments.Until = None,
    reason: arguments.Reason = None,
    slot_basis: arguments.SlotBasis = None,
    time_range: arguments.TimeRange = None,
    priority: arguments.Priority = None,
    fixed_time: arguments.FixedTime = None,
    delay: arguments.Delay = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Requeue dead messages, with all their retries.

    They are due at once unless an option sets a time or a delay. A Priority topic needs --priority.
    """
    queue = queue_of(context, topic, group)
    given = given_values(time_range, priority, fixed_time, delay)
    needed = queue.definition.type.requeue_value is None
    value = Message(b"", **parse_values(queue, given, "requeued", needed=needed))  # type: ignore[arg-type]
    score = requeue_score(value, queue.definition, queue.now_ms())
    times = times_of(queue, since, until)
    by_slot = named_by_slot(queue, contents, every, slots, times, reason, slot_basis)
    if by_slot is not None:
        requeued = repair.requeue(queue, by_slot, score)
        _remark_on_missing(queue, contents, requeued, QueueKind.DEAD)
    else:  # only earlier deaths: a message that dies again meanwhile must not be requeued again
        died = times.within(None, queue.now_ms())
        pages = pages_of(queue, QueueKind.DEAD, slots, died, reason)
        requeued = sum(repair.requeue_page(queue, page, score) for page in pages)
    print_count(as_json, topic, requeued, "requeued")


def purge(
    context: typer.Context,
    topic: arguments.Topic,
    contents: arguments.Names = None,
    every: arguments.Every = False,
    queues: Annotated[str, typer.Option("--queue", help=option_help(PURGED))] = str(PURGED.default),
    slots: arguments.Slots = None,
    since: arguments.From = None,
    until: arguments.Until = None,
    reason: arguments.Reason = None,
    slot_basis: arguments.SlotBasis = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    yes: arguments.Yes = False,
    as_json: arguments.Json = False,
) -> None:
    """Delete dead or waiting messages permanently.

    You cannot purge messages that a consumer holds (the queue prepare).
    """
    kind = QueueKind(PURGED.parse(queues))
    if reason is not None and kind is not QueueKind.DEAD:
        raise InvalidOption(f"--reason is for dead messages. Accepted: --queue {QueueKind.DEAD}.")
    queue = queue_of(context, topic, group)
    times = times_of(queue, since, until)
    by_slot = named_by_slot(queue, contents, every, slots, times, reason, slot_basis)
    if by_slot is not None:
        confirm(f"Delete {messages_text(len(contents or []))} of the {kind} queue of {topic}?", yes)
        deleted = queue.purge(by_slot, kind)
        _remark_on_missing(queue, contents, deleted, kind)
    else:
        held = sum(queue.ask(reading.sizes, [kind], queue.slots))
        is_all = slots is since is until is reason is None
        chosen = "all messages" if is_all else "the chosen messages"
        pages = pages_of(queue, kind, slots, times, reason)
        confirm(f"Delete {chosen} of the {kind} queue of {topic}, which holds {held:,}?", yes)
        deleted = 0
        for page in pages:
            deleted += repair.purge_page(queue, page)
    print_count(as_json, topic, deleted, "deleted")


def _remark_on_missing(
    queue: Queue, contents: list[str] | None, found: int, kind: QueueKind
) -> None:
    named = len(set(contents or ()))
    if found < named:
        held = f"only {found:,} of the {named:,}" if found else "none of them"
        print_remark(
            f"The {kind} queue of this group holds {held}. To see where they are, use rmq find. If "
            "they were sent with a slot basis, add --slot-basis, or --slots; if another consumer "
            "group had them, --group."
        )
        remark_on_keys(queue.definition)


def expire(
    context: typer.Context,
    topic: arguments.Topic,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Give back messages of ended leases; delete old dead ones.

    If you do not run it, the next consumer of the same slot gives messages back, but nobody else
    deletes dead ones. Also gives back the messages of claims whose record was deleted by hand.
    """
    queue = queue_of(context, topic, group)
    given_back, forgotten = repair.sweep(queue)
    try:
        given_back += repair.give_back_strays(queue)
    except ServerRefused as error:
        print_remark(
            "rmq did not look for claims whose record was deleted by hand: "
            f"{denial_of(error)}. To permit it: {permission_remedy(queue, error)}"
        )
    text = f"{topic}: {messages_text(given_back)} given back"
    if queue.definition.dead_retention_ms is not None:
        text += f", {count_text(forgotten, 'dead message')} deleted"
    print_result(as_json, text, topic=topic, messages=given_back, forgotten=forgotten)
