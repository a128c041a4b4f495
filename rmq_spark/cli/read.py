"""Commands that show messages: peek, find, dead, consume, and due, which draws bars."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

import typer

from rmq_spark.cli import arguments
from rmq_spark.cli.arguments import (
    encoded,
    encoded_basis,
    option_help,
    pages_of,
    remark_on_keys,
    times_of,
)
from rmq_spark.cli.output import print_json, print_line, print_remark, print_table
from rmq_spark.cli.session import Ended, broker_of, ended_by_signals, queue_of
from rmq_spark.client.hints import command_line, queue_command
from rmq_spark.client.queue import overview_of
from rmq_spark.client.receiving.batch import Batch
from rmq_spark.client.receiving.consumer import Consumer
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.inspect.fields import (
    age_text,
    content_text,
    entry_json,
    messages_text,
    own_json,
    time_json,
    time_text,
    without_none,
)
from rmq_spark.inspect.histogram import Bar, bar_json, bars_of, count_due_before
from rmq_spark.process import NOTHING_FOUND
from rmq_spark.protocol.claims import Delivered
from rmq_spark.protocol.pages import Entry, Page, QueueKind, first_entries
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, group_text, parse_group
from rmq_spark.topics.parsing import ACCEPTED_RELATIVE, Option, duration
from rmq_spark.topics.reasons import printable

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
_CONSUMED = "{:>5}  {:<24}  {:>8}  {:>7}  {}"
WIDEST_BAR = 40
BLOCKS = " ▏▎▍▌▋▊▉█"


def peek(
    context: typer.Context,
    topic: arguments.Topic,
    queues: arguments.Queues = QueueKind.STORE.value,
    most: Most = DEFAULT_SHOWN,
    slots: arguments.Slots = None,
    since: arguments.From = None,
    until: arguments.Until = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Show messages of any queue without claiming them.

    They are sorted by queue and slot. With --json, each message is one line.
    """
    queue = queue_of(context, topic, group)
    found = pages_of(queue, queues, slots, times_of(queue, since, until))
    _show_first(topic, found, most, as_json, _CELLS)


def find(
    context: typer.Context,
    topic: arguments.Topic,
    contents: Annotated[list[str], typer.Argument(help=arguments.NAMES_HELP, show_default=False)],
    slot_basis: arguments.SlotBasis = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Show where messages are: in which queue, and who holds them.

    Without --slot-basis, all slots are looked into. With --json, each message is one line.
    """
    queue = queue_of(context, topic, group)
    found = queue.find(encoded(contents), slot_basis=encoded_basis(slot_basis))
    missing = [one for one in contents if os.fsencode(one) not in {entry.name for entry in found}]
    if found and missing:
        print_remark(f"Not found: {', '.join(map(printable, missing))}")
    if not found:
        remark_on_keys(queue.definition)
    _show_entries(topic, found, as_json, _CELLS)


def dead(
    context: typer.Context,
    topic: arguments.Topic,
    most: Most = DEFAULT_SHOWN,
    slots: arguments.Slots = None,
    since: arguments.From = None,
    until: arguments.Until = None,
    reason: arguments.Reason = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Show dead messages, who had them last, and why they died.

    They are sorted by slot and by the time of death. With --json, each message is one line. To
    deliver them again, use rmq requeue; to delete them, rmq purge.
    """
    queue = queue_of(context, topic, group)
    times = times_of(queue, since, until)
    of_dead = pages_of(queue, QueueKind.DEAD.value, slots, times, reason)
    columns = ("slot", "content", "died", "by", "reason")
    _show_first(topic, of_dead, most, as_json, columns)


def _show_first(
    topic: str, pages: Iterator[Page], most: int, as_json: bool, columns: Iterable[str]
) -> None:
    found = first_entries(pages, most + 1)
    _show_entries(topic, found[:most], as_json, columns)
    if len(found) > most:
        print_remark(f"There are more than these {most:,}: see --max.")


def _show_entries(topic: str, found: list[Entry], as_json: bool, columns: Iterable[str]) -> None:
    if as_json:
        for entry in found:
            print_json(entry_json(topic, entry))
    elif found:
        print_table(list(columns), ([_CELLS[name](entry) for name in columns] for entry in found))
    else:
        print_line(f"{topic}: no message matches")
    if not found:
        raise typer.Exit(NOTHING_FOUND)


def _named(message: Delivered | Entry) -> str:
    if message.key is None:
        return content_text(message.content)
    return f"{content_text(message.key)} {content_text(message.content)}".rstrip()


_CELLS: dict[str, Callable[[Entry], Any]] = {
    "queue": lambda entry: entry.queue,
    "slot": lambda entry: entry.slot,
    "content": _named,
    "due": lambda entry: time_text(entry.due_time_ms),
    "priority": lambda entry: entry.priority,
    "retries": lambda entry: entry.retries_left,
    "held since": lambda entry: time_text(entry.prepared_at_ms),
    "by": lambda entry: entry.consumer,
    "died": lambda entry: time_text(entry.died_at_ms),
    "reason": lambda entry: entry.reason,
}


def consume(
    context: typer.Context,
    topic: arguments.Topic,
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
        bool, typer.Option("--follow", "-f", help="Continue until Ctrl-C or --max. Needs --commit.")
    ] = False,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
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
        raise typer.Exit(ended.exit_code)
    if not shown and not follow:
        raise typer.Exit(NOTHING_FOUND)


def _limit(most: int | None, commit: bool, follow: bool) -> int | None:
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
    consumer: Consumer, limit: int | None, wait_s: float, follow: bool, ended: Ended
) -> Iterator[Batch]:
    """Yield batches until nothing is due or ``ended``. wait_s: the wait for the first message."""
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
    elif consumer.queue.is_paused:
        group = group_text(consumer.queue.keys.group)
        print_line(
            f"The group {group} of {topic.name} is paused. To deliver its messages again, run: "
            f"{command_line(consumer.queue, 'resume', topic.name)} --group {group}"
        )
    else:
        seen, due = overview_of(consumer.queue), queue_command(consumer.queue, "due")
        figures, until = seen.figures, time_text(seen.held_until_ms)
        due_now = figures.store.due + figures.retry.due
        why = f"{due_now:,} due, but held until {until}" if due_now and until else "nothing is due"
        print_line(
            f"{topic.name}: {why}. Waiting for their time: "
            f"{figures.store.count - figures.store.due:,} ({due}); for a retry: "
            f"{figures.retry.count - figures.retry.due:,}; held by consumers: "
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


def due(
    context: typer.Context,
    topic: arguments.Topic,
    since: Annotated[
        str | None,
        typer.Option("--from", help=f"Draw bars from this moment on: {ACCEPTED_RELATIVE}."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Draw bars up to this moment, such as 1h.")
    ] = None,
    group: arguments.Group = DEFAULT_GROUP_TEXT,
    as_json: arguments.Json = False,
) -> None:
    """Draw when messages fall due, as bars.

    For a Priority topic the bars show how many messages have which priority. The command counts
    the messages that wait in the store or for a retry; it does not read or claim them.
    """
    queue = queue_of(context, topic, group)
    timed = queue.definition.type.has_due_times
    if not timed and (since, until) != (None, None):
        raise InvalidOption(
            f"Topic {topic} is {queue.definition.type}: its messages have no due time. Leave out "
            "--from and --until."
        )
    now_ms = queue.now_ms()
    bars = bars_of(queue, now_ms, times_of(queue, since, until))
    total = sum(bar.messages for bar in bars)
    due_now = count_due_before(queue, [now_ms + 1])[0] if timed and total else None
    if as_json:
        counts = {"messages": total, **without_none({"dueNow": due_now})}
        found = [bar_json(queue.definition, bar) for bar in bars]
        print_json({"topic": topic, "group": group_text(queue.keys.group), **counts, "bars": found})
    else:
        more = "" if due_now is None else f", {due_now:,} due now"
        print_line(f"{topic}: {messages_text(total)} waiting{more}")
        most = max((bar.messages for bar in bars), default=0)
        cells = [_time_cells(bar, now_ms) if timed else (_priority_text(bar),) for bar in bars]
        rows = [
            (*of_bar, bar.messages, _blocks(bar.messages, most))
            for of_bar, bar in zip(cells, bars, strict=True)
        ]
        if rows:
            columns = ("due from", "in") if timed else ("priority",)
            print_table((*columns, "messages", ""), rows)
    if not total:
        raise typer.Exit(NOTHING_FOUND)


def _time_cells(bar: Bar, now_ms: int) -> tuple[str | None, str]:
    if bar.low is None:
        return ("now" if bar.high == now_ms + 1 else "before"), ""
    away_ms = bar.low - now_ms
    away = f"-{age_text(-away_ms)}" if away_ms < 0 else age_text(away_ms)
    return time_text(bar.low), f"{away} and later" if bar.high is None else away


def _priority_text(bar: Bar) -> str:
    if bar.low is None or bar.high is None:
        return "rolled back"
    last = bar.high - 1
    return f"{bar.low:,}" if bar.low == last else f"{bar.low:,} to {last:,}"


def _blocks(messages: int, most: int) -> str:
    """Draw one bar: in eighths of a character, or with # if stdout cannot show BLOCKS."""
    if "utf" not in (sys.stdout.encoding or "").lower():
        return "#" * -(-WIDEST_BAR * messages // most)
    eighths = -(-8 * WIDEST_BAR * messages // most)
    return (BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8]).rstrip()
