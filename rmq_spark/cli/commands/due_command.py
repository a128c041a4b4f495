"""The command rmq due: draws bars for the due times or the priorities of waiting messages."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import Group, Json, Topic
from rmq_spark.cli.chosen_messages import times_of
from rmq_spark.cli.output import print_json, print_line, print_table
from rmq_spark.cli.session import broker_of
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.exit_codes import NOTHING_FOUND
from rmq_spark.protocol.pages import Bounds
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, group_text, parse_group
from rmq_spark.topics.parsers import ACCEPTED_RELATIVE
from rmq_spark.views.due_bars import (
    Bar,
    bars_of_priorities,
    bars_of_times,
    count_due_before,
    priority_bar_json,
    time_bar_json,
)
from rmq_spark.views.shown_texts import age_text, messages_text, time_text

WIDEST_BAR = 40
BLOCKS = " ▏▎▍▌▋▊▉█"


def due(
    context: typer.Context,
    topic: Topic,
    since: Annotated[
        str | None,
        typer.Option("--from", help=f"Draw bars from this moment on: {ACCEPTED_RELATIVE}."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Draw bars up to this moment, such as 1h.")
    ] = None,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Draw when messages fall due, as bars.

    For a Priority topic the bars show how many messages have which priority. The command counts
    the messages that wait in the store or for a retry; it does not read or claim them.
    """
    queue = broker_of(context).queue(topic, group=parse_group(group))
    if not queue.definition.type.has_due_times:
        if since is not None or until is not None:
            raise InvalidOption(
                f"Topic {topic} is {queue.definition.type}: its messages have no due time. Leave "
                "out --from and --until."
            )
        total = _draw_priorities(queue, as_json)
    else:
        total = _draw_times(queue, times_of(queue, since, until), as_json)
    if not total:
        raise typer.Exit(NOTHING_FOUND)


def _draw_times(queue: Queue, times: Bounds, as_json: bool) -> int:
    now_ms = queue.now_ms()
    bars = bars_of_times(queue, now_ms, times)
    total = sum(bar.messages for bar in bars)
    if as_json:
        _print_json(queue, [time_bar_json(bar) for bar in bars])
        return total
    due_now = count_due_before(queue, [now_ms + 1])[0]
    _print_total(queue, total, f", {due_now:,} due now" if total else "")
    rows = [
        (*_time_cells(bar, now_ms), bar.messages, text)
        for bar, text in zip(bars, _drawn(bars), strict=True)
    ]
    if rows:
        print_table(("due from", "in", "messages", ""), rows)
    return total


def _draw_priorities(queue: Queue, as_json: bool) -> int:
    bars = bars_of_priorities(queue)
    total = sum(bar.messages for bar in bars)
    if as_json:
        _print_json(queue, [priority_bar_json(bar) for bar in bars])
        return total
    _print_total(queue, total, "")
    rows = [
        (_priority_text(bar), bar.messages, text)
        for bar, text in zip(bars, _drawn(bars), strict=True)
    ]
    if rows:
        print_table(("priority", "messages", ""), rows)
    return total


def _print_total(queue: Queue, total: int, more: str) -> None:
    print_line(f"{queue.definition.name}: {messages_text(total)} waiting{more}")


def _print_json(queue: Queue, bars: list[dict[str, Any]]) -> None:
    topic, group = queue.definition.name, group_text(queue.keys.group)
    print_json({"topic": topic, "group": group, "bars": bars})


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


def _drawn(bars: Sequence[Bar]) -> list[str]:
    """Draw each bar as text. The longest bar has WIDEST_BAR characters."""
    most = max((bar.messages for bar in bars), default=0)
    return [_blocks(bar.messages, most) for bar in bars]


def _blocks(messages: int, most: int) -> str:
    """Draw one bar: in eighths of a character, or with # if stdout cannot show BLOCKS."""
    if "utf" not in (sys.stdout.encoding or "").lower():
        return "#" * -(-WIDEST_BAR * messages // most)
    eighths = -(-8 * WIDEST_BAR * messages // most)
    return (BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8]).rstrip()
