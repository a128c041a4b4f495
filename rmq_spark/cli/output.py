"""The output of commands: tables for people, JSON for programs, and logs."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmq_spark.errors import InvalidOption
from rmq_spark.inspect.fields import json_text
from rmq_spark.inspect.logs import StderrHandler
from rmq_spark.topics.reasons import printable

# In a pipe, a longer cell moves the rest of its line to the right.
WIDEST_COLUMN = 60
# What a terminal does not fold: a time has 24 characters.
UNFOLDED = 24
_GAP = "  "
# What logs that a call to Redis is retried, and why ``rmq metrics`` lacks a queue.
_WARNING_LOGS = (
    "rmq_spark.redis.server",
    "rmq_spark.client.administration",
    "rmq_spark.inspect.prometheus",
)


def print_line(text: str) -> None:
    """Print a line for people on stdout. What must not reach a terminal is escaped."""
    sys.stdout.write(f"{printable(text)}\n")


def print_result(as_json: bool, text: str, **values: Any) -> None:
    """Print the result of a command: ``text`` for people, or ``values`` as JSON for programs."""
    if as_json:
        print_json(values)
    else:
        print_line(text)


def print_remark(text: str) -> None:
    if sys.stderr:
        sys.stderr.write(f"{printable(text)}\n")


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless ``yes``. A no ends the command."""
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise InvalidOption(
            f"{question} Nobody can answer: stdin is not a terminal. To go ahead, add --yes."
        )
    typer.confirm(question, abort=True)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, in ASCII unless stdout can write any character."""
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    sys.stdout.write((json.dumps(value) if plain else json_text(value)) + "\n")


def print_list(
    as_json: bool,
    fields: list[dict[str, Any]],
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    none: str,
) -> None:
    """Print a list: as JSON, as a table, or if it is empty, what ``none`` says."""
    if as_json:
        print_json(fields)
    elif fields:
        print_table(columns, rows)
    else:
        print_line(none)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table. If stdout is not a terminal, it has no colours and each row is one line.

    In a terminal too narrow for it, each cell that is not empty is a line of its own.
    """
    listed = [list(row) for row in rows]
    lines = [columns, *(list(map(cell_text, row)) for row in listed)]
    longest = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if sys.stdout.isatty():
        console = Console(highlight=False)
        least = sum(min(width, UNFOLDED) + len(_GAP) for width in longest) - len(_GAP)
        if least <= console.width:
            console.print(table_of(columns, listed))
        else:
            for number, row in enumerate(lines[1:]):
                console.print(*[""] * (number > 0), _record(columns, row), sep="\n")
        return
    widths = [min(width, WIDEST_COLUMN) for width in longest]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print_line(_GAP.join(cells).rstrip())


def _record(columns: Sequence[str], row: Sequence[str]) -> Table:
    record = Table.grid("", "", padding=(0, len(_GAP), 0, 0))
    for column, cell in zip(columns, row, strict=True):
        if cell:
            record.add_row(Text(column, "bold"), Text(cell, overflow="fold"))
    return record


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    listed = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numbers = [row[at] for row in listed if row[at] is not None]
        numeric = bool(numbers) and all(isinstance(one, int | float) for one in numbers)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:  # as Text, so that rich prints [red] as it is
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    return table


def cell_text(value: Any) -> str:
    """Format a cell: numbers with thousands separators, yes or no for bool, "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else printable(str(value))


def print_log(name: str, level: int, line: str = "%(message)s") -> None:
    log = logging.getLogger(name)
    log.setLevel(level)
    if not log.handlers:
        log.addHandler(StderrHandler(line))
        log.propagate = False


def log_warnings() -> None:
    """Log warnings of _WARNING_LOGS to stderr, and nothing else: a lasting error is printed."""
    for name in ("rmq_spark", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in _WARNING_LOGS:
        print_log(name, logging.WARNING)


@contextmanager
def logging_everything() -> Iterator[None]:
    """Log everything from INFO on to stderr, unless the block, which imports a program, does.

    A service is watched by its logs. So none of this package stays disabled, as logging.config
    leaves those that it does not name.
    """
    logging.getLogger("rmq_spark").setLevel(logging.NOTSET)
    for name in _WARNING_LOGS:
        log = logging.getLogger(name)
        log.handlers.clear()
        log.propagate = True
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    yield
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "rmq_spark":
            logging.getLogger(name).disabled = False
    handler = StderrHandler("%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.basicConfig(level=logging.INFO, handlers=[handler])
