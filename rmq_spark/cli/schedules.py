"""The commands for schedules: schedule, schedules, unschedule; and scheduler, which runs them."""

import logging
import os
from typing import Annotated, Any

import typer

from rmq_spark.cli import arguments
from rmq_spark.cli.arguments import encoded_basis, given_values, moment, parse_values, parsed
from rmq_spark.cli.output import print_list, print_log, print_remark, print_result
from rmq_spark.cli.send import parse_headers
from rmq_spark.cli.session import broker_of, session_of
from rmq_spark.client.messages import Message
from rmq_spark.client.schedules import (
    CATCH_UPS,
    ONE,
    OVERLAPS,
    SEND,
    SHORTEST_INTERVAL_MS,
    Schedule,
    ScheduleSeen,
    schedules,
    seen,
)
from rmq_spark.errors import RmqError
from rmq_spark.inspect.fields import (
    age_text,
    content_json,
    content_text,
    headers_json,
    schedule_json,
    time_json,
    time_text,
    without_none,
)
from rmq_spark.options import ENDING_TIME, STARTING_TIME, TIME_TO_LIVE
from rmq_spark.process import NOTHING_FOUND, stopped_by_signals
from rmq_spark.topics.parsing import Option, duration

LONGEST_INTERVAL_MS = 36_500 * 86_400_000  # a hundred years
EVERY = Option("--every", duration(SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS), "The interval")
Name = Annotated[str, typer.Argument(help="The name of a schedule.", show_default=False)]


def schedule(
    context: typer.Context,
    name: Name,
    topic: arguments.Topic,
    content: Annotated[
        str | None, typer.Argument(help="The content of the message.", show_default=False)
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="When: minute, hour, day, month and day of the week, such as '0 3 * * *'. A sixth "
            "field, in front, is the second.",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="In place of --cron, an interval such as 5m.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="The time zone of --cron, such as Europe/Zurich.")
    ] = "UTC",
    first: Annotated[
        str | None, typer.Option(help="The earliest time, where --every begins. Default: now.")
    ] = None,
    last: Annotated[str | None, typer.Option(help="The latest time.")] = None,
    catch_up: Annotated[
        str,
        typer.Option(
            help="Of what was missed while no scheduler ran, what to send. Accepted: "
            f"{', '.join(CATCH_UPS)}."
        ),
    ] = ONE,
    overlap: Annotated[
        str,
        typer.Option(
            help="What to do while the last message waits or is in progress. Accepted: "
            f"{', '.join(OVERLAPS)}."
        ),
    ] = SEND,
    slot_basis: arguments.SlotBasis = None,
    time_range: arguments.TimeRange = None,
    priority: arguments.Priority = None,
    delay: arguments.Delay = None,
    key: Annotated[
        str | None, typer.Option(help="For a keyed topic: the key of the message.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of the message; repeatable."),
    ] = None,
    time_to_live: arguments.TimeToLive = None,
    as_json: arguments.Json = False,
) -> None:
    """Send a message again and again: create or change a schedule.

    Messages are sent while at least one `rmq scheduler` runs.
    """
    broker = broker_of(context)
    queue = broker.queue(topic)
    given = given_values(time_range, priority, None, delay)
    values: dict[str, Any] = parse_values(queue, given, "scheduled", needed=False)
    message = Message(
        None if content is None else os.fsencode(content),
        slot_basis=encoded_basis(slot_basis),
        key=None if key is None else os.fsencode(key),
        headers=parse_headers(header) or None,
        time_to_live=parsed(TIME_TO_LIVE.called("--time-to-live"), time_to_live),
        **values,
    )
    made = broker.schedule(
        name,
        topic,
        message,
        cron=cron,
        every=parsed(EVERY, every),
        timezone=timezone,
        first=moment(queue, STARTING_TIME.called("--first"), first),
        last=moment(queue, ENDING_TIME.called("--last"), last),
        catch_up=catch_up,
        overlap=overlap,
    )
    next_ms = made.next_after(made.since_ms)
    paused = ", paused" if made.paused else ""
    text = f"{name}: {made.rule}, from {time_text(next_ms)} on{paused}"
    fields = {"schedule": name, "topic": topic, "rule": made.rule, "first": time_json(next_ms)}
    print_result(as_json, text, **fields, paused=made.paused)


def list_schedules(
    context: typer.Context,
    pause: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let this schedule send nothing.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Let this schedule send again. What it missed is not sent."
        ),
    ] = None,
    as_json: arguments.Json = False,
) -> None:
    """List the schedules, with their last and next occurrence."""
    broker = broker_of(context)
    named = {name for name in (pause, resume) if name is not None}
    if named:
        unread: dict[str, RmqError] = {}
        known = {one.name for one in schedules(broker, unread.__setitem__)}
        if unknown := named - known - unread.keys():
            print_remark(f"There is no schedule {min(unknown)}.")
            raise typer.Exit(NOTHING_FOUND)
    if pause is not None:
        broker.pause_schedule(pause)
    if resume is not None:
        broker.resume_schedule(resume)
    found = seen(broker, lambda _, error: print_remark(str(error)))
    columns = ("schedule", "topic", "message", "when", "last", "next", "")
    # Not in schedule_json: a console may have to hide the contents of messages.
    fields = [{**schedule_json(one), "message": _message_json(one.schedule)} for one in found]
    print_list(as_json, fields, columns, map(_row, found), "There are no schedules.")


def _message_json(of: Schedule) -> dict[str, Any]:
    """Convert the message of a schedule to the fields of rmq send --from-json, with times in ms."""
    message: Any = of.message  # whose texts are bytes
    texts = {"key": message.key, "content": message.content, "slotBasis": message.slot_basis}
    found: dict[str, Any] = {}
    for name, text in without_none(texts).items():
        found |= content_json(text, name)
    return found | without_none(
        {
            "headers": headers_json(message.headers) if message.headers else None,
            "timeRange": message.time_range,
            "priority": message.priority,
            "delay": message.delay,
            "timeToLive": message.time_to_live,
        }
    )


def _row(one: ScheduleSeen) -> tuple[Any, ...]:
    of = one.schedule
    late = f"{age_text(one.late_ms)} late" * (one.late_ms >= 1000)
    state = "paused" if of.paused else "waits until the last message is done" if one.waits else late
    name = of.message.content if of.message.key is None else of.message.key
    shown = content_text(name if isinstance(name, bytes) else None)
    times = time_text(one.last_ms) or "", time_text(one.next_ms) or ""
    return of.name, of.topic, shown, of.rule, *times, state


def unschedule(context: typer.Context, name: Name, as_json: arguments.Json = False) -> None:
    """Remove a schedule. Messages that it has sent stay."""
    if not broker_of(context).unschedule(name):
        print_result(as_json, f"There is no schedule {name}.", schedule=name, removed=False)
        raise typer.Exit(NOTHING_FOUND)
    print_result(as_json, f"{name}: removed", schedule=name, removed=True)


def scheduler(context: typer.Context) -> None:
    """Send the messages of all schedules until Ctrl-C.

    Run it once, or several times for safety: each message is sent once.
    """
    print_log("rmq_spark.client.scheduler", logging.INFO, "%(asctime)s %(message)s")
    with session_of(context).broker(patience_s=None) as broker:
        running = broker.scheduler()
        with stopped_by_signals(lambda _: running.stop(), unless_ignored=True):
            running.run()
