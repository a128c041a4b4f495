"""The command rmq top: watches rates, queues and consumers of topics."""

import sys
import time
from typing import Annotated, Any

import typer
from rich.live import Live

from rmq_spark.cli.arguments import Json, option_help
from rmq_spark.cli.output import print_json, print_table, table_of
from rmq_spark.cli.session import broker_of
from rmq_spark.client.overview import Row
from rmq_spark.options.option import Option
from rmq_spark.protocol.claims import ConsumerSeen
from rmq_spark.topics.parsers import duration
from rmq_spark.views.json_fields import row_json
from rmq_spark.views.rates import Rate, Snapshots
from rmq_spark.views.shown_texts import age_text, count_text

INTERVAL = Option("--interval", duration(100), "The time between two updates", default="2s")
COLUMNS = (
    *("topic", "group", "in/s", "out/s", "due", "delayed", "prepared", "retry", "dead"),
    *("oldest", "consumers"),
)


def top(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Topics; without any, all.", show_default=False)
    ] = None,
    interval: Annotated[str, typer.Option(help=option_help(INTERVAL))] = str(INTERVAL.default),
    times: Annotated[
        int | None,
        typer.Option(
            "--times", "-n", min=1, help="Update this many times, instead of until Ctrl-C."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch rates, queues and consumers of topics until Ctrl-C.

    If stdout is not a terminal, rmq prints one table after another. With --json, each look is one
    line.
    """
    seconds = INTERVAL.parse(interval) / 1000
    broker = broker_of(context)
    looks = Snapshots(broker, names)
    if as_json or not sys.stdout.isatty():
        for _ in _ticks(seconds, times):
            rows, rates = looks.next()
            if as_json:
                print_json([row_json(row, rates[row.topic, row.group]) for row in rows])
            else:
                print_table(COLUMNS, _lines(rows, rates))
            sys.stdout.flush()
        return
    with Live(auto_refresh=False, screen=times is None) as live:
        for _ in _ticks(seconds, times):
            live.update(table_of(COLUMNS, _lines(*looks.next())), refresh=True)


def _ticks(seconds: float, times: int | None) -> Any:
    """Yield 1, 2, ... with a pause of ``seconds`` in between; ``times`` numbers, or no end."""
    number = 0
    while times is None or number < times:
        if number:
            time.sleep(seconds)
        number += 1
        yield number


def _lines(rows: list[Row], rates: dict[tuple[str, str], Rate]) -> list[tuple[Any, ...]]:
    return [_cells(row, rates[row.topic, row.group]) for row in rows]


def _cells(row: Row, rate: Rate) -> tuple[Any, ...]:
    figures = row.figures
    return (
        row.topic,
        row.group,
        round(rate.came),
        round(rate.went),
        row.due,
        row.delayed,
        figures.prepare.count,
        figures.retry.count,
        figures.dead.count,
        age_text(row.oldest_age_ms),
        ", ".join(_consumer_text(seen, row.exclusive) for seen in row.consumers),
    )


def _consumer_text(seen: ConsumerSeen, exclusive: bool) -> str:
    """Write a consumer's name, and the number of its slots if the topic shares them out."""
    slots = f" ({count_text(seen.slots, 'slot')})" if exclusive else ""
    return f"{seen.consumer[:12]}{slots}"
