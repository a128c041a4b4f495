"""Commands that repair queues: they requeue, purge and expire messages."""

from typing import Annotated

import typer

from rmq_spark.cli.arguments import (
    Delay,
    FixedTime,
    From,
    Group,
    Json,
    Names,
    Priority,
    SlotBasis,
    Slots,
    TimeRange,
    Topic,
    Until,
    Yes,
    option_help,
)
from rmq_spark.cli.chosen_messages import (
    Every,
    are_named,
    encoded,
    encoded_basis,
    pages_of,
    print_count,
    remark_on_keys,
    times_of,
)
from rmq_spark.cli.message_values import (
    given_values,
    message_with,
    parse_values,
    refuse_other_values,
    require_value,
)
from rmq_spark.cli.output import confirm, print_remark, print_result
from rmq_spark.cli.session import broker_of
from rmq_spark.client.claim_keys import give_back_strays
from rmq_spark.client.dead_pages import purge_page, requeue_page
from rmq_spark.client.messages import contents_by_slot, requeue_score
from rmq_spark.errors import ServerRefused
from rmq_spark.options.option import Option
from rmq_spark.protocol import reading, returning, sending
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, parse_group
from rmq_spark.topics.parsers import choice
from rmq_spark.views.shown_texts import count_text, messages_text

PURGED = Option(
    "--queue",
    choice(QueueKind.DEAD, QueueKind.STORE, QueueKind.RETRY),
    "The queue",
    default=QueueKind.DEAD,
)


def requeue(
    context: typer.Context,
    topic: Topic,
    contents: Names = None,
    every: Every = False,
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    slot_basis: SlotBasis = None,
    time_range: TimeRange = None,
    priority: Priority = None,
    fixed_time: FixedTime = None,
    delay: Delay = None,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Requeue dead messages, with all their retries.

    They are due at once unless an option sets a time or a delay. A Priority topic needs --priority.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    given = given_values(time_range, priority, fixed_time, delay)
    refuse_other_values(queue.definition, given, "requeued")
    values = message_with(parse_values(queue, given))
    if queue.definition.type.requeue_value is None:
        require_value(queue.definition, values, "requeued")
    score = requeue_score(values, queue.definition, queue.now_ms())
    if are_named(contents, every):
        by_slot = contents_by_slot(encoded(contents), encoded_basis(slot_basis), queue.definition)
        pairs = {s: [v for c in of_slot for v in (score, c)] for s, of_slot in by_slot.items()}
        requeued = queue.ask(sending.requeue, pairs)
    else:  # only earlier deaths: a message that dies again meanwhile must not be requeued again
        times = times_of(queue, since, until).within(None, queue.now_ms())
        pages = pages_of(queue, QueueKind.DEAD, slots, times)
        requeued = sum(requeue_page(queue, page, score) for page in pages)
    if contents and not requeued:
        print_remark(
            "The dead queue does not hold them. If they were sent with a slot basis, add "
            "--slot-basis; if another consumer group had them, --group."
        )
        remark_on_keys(queue.definition)
    print_count(as_json, topic, requeued, "requeued")


def purge(
    context: typer.Context,
    topic: Topic,
    contents: Names = None,
    every: Every = False,
    queues: Annotated[str, typer.Option("--queue", help=option_help(PURGED))] = str(PURGED.default),
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    slot_basis: SlotBasis = None,
    group: Group = DEFAULT_GROUP_TEXT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete dead or waiting messages permanently.

    You cannot purge messages that a consumer holds (the queue prepare).
    """
    kind = QueueKind(PURGED.parse(queues))
    queue = broker_of(context).queue(topic, group=parse_group(group))
    if are_named(contents, every):
        confirm(f"Delete {messages_text(len(contents or []))} of the {kind} queue of {topic}?", yes)
        deleted = queue.purge(encoded(contents), kind, slot_basis=encoded_basis(slot_basis))
    else:
        held = sum(queue.ask(reading.sizes, [kind], queue.slots))
        chosen = "all messages" if slots is since is until is None else "the chosen messages"
        pages = pages_of(queue, kind, slots, times_of(queue, since, until))
        confirm(f"Delete {chosen} of the {kind} queue of {topic}, which holds {held:,}?", yes)
        deleted = 0
        for page in pages:
            deleted += purge_page(queue, page)
    if contents and not deleted:
        remark_on_keys(queue.definition)
    print_count(as_json, topic, deleted, "deleted")


def expire(
    context: typer.Context,
    topic: Topic,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """End leases that have run out, and the retention of the dead.

    If you do not run it, the next consumer of the same slot gives messages back, but nobody else
    deletes dead ones. Also gives back the messages of claims whose record was deleted by hand.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    forgotten = queue.ask(returning.forget, queue.slots)
    given_back = queue.expire()
    try:
        given_back += give_back_strays(queue)
    except ServerRefused:
        print_remark(
            "rmq did not look for claims whose record was deleted by hand: this Redis user may not "
            "run SCAN and EXISTS"
        )
    text = f"{topic}: {messages_text(given_back)} given back"
    if queue.definition.dead_retention_ms is not None:
        text += f", {count_text(forgotten, 'dead message')} deleted"
    print_result(as_json, text, topic=topic, messages=given_back, forgotten=forgotten)


def upgrade(
    context: typer.Context,
    topic: Topic,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Give back what an earlier version has claimed.

    Stop all programs of that version first. The messages wait as if they had never been claimed.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    given_back = queue.upgrade()
    text = f"{topic}: {messages_text(given_back)} given back"
    print_result(as_json, text, topic=topic, messages=given_back)
