"""Commands that show messages: of any queue (peek), or those that a consumer gets (consume)."""

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from threading import Event
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import From, Group, Json, Queues, Slots, Topic, Until, option_help
from rmq_spark.cli.chosen_messages import pages_of, times_of
from rmq_spark.cli.output import print_json, print_line, print_remark, print_table
from rmq_spark.cli.session import broker_of, ended_by_signals
from rmq_spark.client.receiving.batch import Batch
from rmq_spark.client.receiving.consumer import Consumer
from rmq_spark.client.remedies import command_line, queue_command
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.exit_codes import INTERRUPTED, NOTHING_FOUND
from rmq_spark.options.option import Option
from rmq_spark.protocol.claims import Delivered
from rmq_spark.protocol.pages import Entry, QueueKind, first_entries
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, parse_group
from rmq_spark.topics.parsers import duration
from rmq_spark.views.json_fields import entry_json, own_json
from rmq_spark.views.shown_texts import (
    content_text,
    messages_text,
    time_json,
    time_text,
    without_none,
)

DEFAULT_SHOWN = 20
# A claim of so many blocks Redis for less than 10 ms, also if a thousand retries fall due with it.
MESSAGES_AT_ONCE = 1024
# How soon the command ends after a signal.
LONGEST_WAIT_S = 0.5
MOST_SHOWN = 1_000_000  # the command holds all of them in memory
Most = Annotated[
    int, typer.Option("--max", "-n", min=1, max=MOST_SHOWN, help="Show at most this many.")
]
WAIT = Option("--wait", duration(0), "How long to wait for the first message", default="0s")
_PEEKED = (
    "queue",
    "slot",
    "content",
    "due",
    "priority",
    "retries",
    "held since",
    "by",
    "died",
    "reason",
)
_DEAD = ("slot", "content", "died", "by", "reason")
_CONSUMED = "{:>5}  {:<24}  {:>8}  {:>7}  {}"


def peek(
    context: typer.Context,
    topic: Topic,
    queues: Queues = QueueKind.STORE.value,
    most: Most = DEFAULT_SHOWN,
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Show messages of any queue without claiming them.

    They are sorted by queue and slot. With --json, each message is one line.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    found = first_entries(pages_of(queue, queues, slots, times_of(queue, since, until)), most)
    _show_entries(topic, found, as_json, _PEEKED, _entry_row)


def dead(
    context: typer.Context,
    topic: Topic,
    most: Most = DEFAULT_SHOWN,
    slots: Slots = None,
    since: From = None,
    until: Until = None,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Show dead messages, who had them last, and why they died.

    They are sorted by slot and by the time of death. With --json, each message is one line. To
    deliver them again, use rmq requeue; to delete them, rmq purge.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    of_dead = pages_of(queue, QueueKind.DEAD.value, slots, times_of(queue, since, until))
    _show_entries(topic, first_entries(of_dead, most), as_json, _DEAD, _dead_row)


def _show_entries(
    topic: str,
    found: list[Entry],
    as_json: bool,
    columns: tuple[str, ...],
    row_of: Callable[[Entry], tuple[Any, ...]],
) -> None:
    """Print messages of queues, as JSON or in a table with these columns."""
    if as_json:
        for entry in found:
            print_json(entry_json(topic, entry))
    elif found:
        print_table(columns, map(row_of, found))
    else:
        print_line("No message matches.")
    if not found:
        raise typer.Exit(NOTHING_FOUND)


def consume(
    context: typer.Context,
    topic: Topic,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            "-n",
            min=1,
            help=f"Take at most this many. Without it: {DEFAULT_SHOWN}; with --follow, no limit.",
        ),
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit the messages once they are shown.")
    ] = False,
    wait: Annotated[str, typer.Option(help=option_help(WAIT))] = str(WAIT.default),
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue until Ctrl-C or --max. Needs --commit."),
    ] = False,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Show the messages that a consumer gets now.

    Without --commit, they are given back at once and keep their place and their retries. Other
    consumers cannot get them while they are shown. Use rmq peek for messages that are not due,
    or that other consumers hold.

    With --commit, they are removed from this consumer group once they are shown. Ctrl-C gives back
    the messages that are not committed.
    """
    limit = _limit(most, commit, follow)
    wait_s = WAIT.parse(wait) / 1000
    broker = broker_of(context)
    with ended_by_signals() as ended:
        consumer = broker.consumer(
            topic, f"rmq-consume-{uuid.uuid4().hex[:12]}", group=parse_group(group)
        )
        try:
            batches = _batches(consumer, limit, wait_s, follow, ended)
            shown = (
                _show_and_commit(batches, as_json)
                if commit
                else _show_and_give_back(batches, as_json)
            )
        finally:
            consumer.forget()
    if not as_json:
        _report_outcome(consumer, shown, commit)
    if ended.is_set() and not follow:
        raise typer.Exit(INTERRUPTED)
    if not shown and not follow:
        raise typer.Exit(NOTHING_FOUND)


def _limit(most: int | None, commit: bool, follow: bool) -> int | None:
    """Return the number of messages to show, None for no limit.

    Raises InvalidOption if --follow or --max needs --commit, or --commit an open stdout.
    """
    if commit and sys.__stdout__ is None:
        raise InvalidOption(
            "stdout is closed, so --commit would remove messages that nobody sees. To remove them "
            "unseen, redirect stdout to /dev/null."
        )
    if follow and not commit:
        raise InvalidOption(
            "--follow needs --commit: a message that is given back would be shown again and again. "
            "To watch a topic without taking messages, use rmq top, rmq due or rmq peek."
        )
    if follow:
        return most
    if not commit and (most or 0) > MESSAGES_AT_ONCE:
        raise InvalidOption(
            f"--max {most} is not accepted without --commit. Accepted: 1 to {MESSAGES_AT_ONCE}; "
            "rmq peek shows more."
        )
    return DEFAULT_SHOWN if most is None else most


def _batches(
    consumer: Consumer, limit: int | None, wait_s: float, follow: bool, ended: Event
) -> Iterator[Batch]:
    """Yield batches of at most ``limit`` messages in total, until nothing is due or ``ended``.

    wait_s: the longest wait for the first message. follow: whether to wait for more when nothing is
    due.
    """
    left, until, found = limit, time.monotonic() + wait_s, False
    while not ended.is_set() and left != 0:
        most = MESSAGES_AT_ONCE if left is None else min(left, MESSAGES_AT_ONCE)
        rest_s = LONGEST_WAIT_S if follow else until - time.monotonic()
        wait_s = 0.0 if found and not follow else min(max(rest_s, 0.0), LONGEST_WAIT_S)
        batch = consumer.poll(most, wait=timedelta(seconds=wait_s))
        if batch:
            found = True
            left = None if left is None else left - len(batch)
            yield batch
        elif not follow and (found or time.monotonic() >= until):
            return


def _show_and_give_back(batches: Iterator[Batch], as_json: bool) -> int:
    """Show the first batch, uncommitted: the consumer gives it back. Returns its size."""
    for batch in batches:
        batch.mark_unread()  # first, so that no failure uses up a retry
        _show(batch, as_json, headed=True)
        return len(batch)
    return 0


def _show_and_commit(batches: Iterator[Batch], as_json: bool) -> int:
    """Show batches, and commit each one once it is written. Returns the number committed."""
    taken = 0
    for batch in batches:
        try:
            _show(batch, as_json, headed=not taken)
        except BaseException:  # such as the error of a pipe whose reader is gone
            with suppress(RmqError):
                batch.mark_unread()
            raise
        taken += batch.commit()
    return taken


def _show(batch: Batch, as_json: bool, *, headed: bool) -> None:
    if headed and not as_json:
        print_line(_CONSUMED.format("slot", "due or priority", "delivery", "retries", "content"))
    for message in batch:
        if as_json:
            print_json(_delivered_json(message))
        else:
            print_line(_delivered_line(message))
    sys.stdout.flush()


def _report_outcome(consumer: Consumer, shown: int, commit: bool) -> None:
    topic = consumer.queue.definition
    if shown:
        became = "committed" if commit else "given back; --commit takes them"
        print_remark(f"{topic.name}: {messages_text(shown)} shown and {became}")
    elif topic.paused:
        print_line(
            f"{topic.name} is paused: no consumer gets its messages. To deliver them again, run: "
            f"{command_line(consumer.queue, 'resume', topic.name)}"
        )
    else:
        figures, due = consumer.queue.figures(), queue_command(consumer.queue, "due")
        print_line(
            f"{topic.name}: nothing is due. Waiting for their time: {figures.store.count:,} "
            f"({due}); for a retry: {figures.retry.count:,}; held by consumers: "
            f"{figures.prepare.count:,}; dead: {figures.dead.count:,}."
        )


def _delivered_json(message: Delivered) -> dict[str, Any]:
    """Convert a message to JSON fields, which are named like the columns of the source."""
    return {
        "topic": message.topic,
        "slot": message.slot,
        **own_json(message),
        **without_none({"dueTime": time_json(message.due_time_ms), "priority": message.priority}),
        "deliveryCount": message.delivery_count,
        "retriesLeft": message.retries_left,
        "claimId": message.claim_id,
        "claimedAt": time_json(message.claimed_at_ms),
    }


def _delivered_line(message: Delivered) -> str:
    place = time_text(message.due_time_ms) or message.priority
    return _CONSUMED.format(
        message.slot,
        "" if place is None else place,
        message.delivery_count,
        message.retries_left,
        _named(message),
    )


def _named(message: Delivered | Entry) -> str:
    """Format a message for people: its content, in a keyed topic behind its key."""
    if message.key is None:
        return content_text(message.content)
    return f"{content_text(message.key)} {content_text(message.content)}".rstrip()


def _entry_row(entry: Entry) -> tuple[Any, ...]:
    return (
        entry.queue,
        entry.slot,
        _named(entry),
        time_text(entry.due_time_ms),
        entry.priority,
        entry.retries_left,
        time_text(entry.prepared_at_ms),
        entry.consumer,
        time_text(entry.died_at_ms),
        entry.reason,
    )


def _dead_row(entry: Entry) -> tuple[Any, ...]:
    died = time_text(entry.died_at_ms)
    return entry.slot, _named(entry), died, entry.consumer, entry.reason
