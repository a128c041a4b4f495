"""The output of commands: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmq_spark.errors import InvalidOption

# In a pipe, a longer cell moves the rest of its line to the right.
WIDEST_COLUMN = 60


def print_line(text: str) -> None:
    """Print a line for people on stdout."""
    sys.stdout.write(f"{text}\n")


def print_result(as_json: bool, text: str, **values: Any) -> None:
    """Print the result of a command: ``text`` for people, or ``values`` as JSON for programs."""
    if as_json:
        print_json(values)
    else:
        print_line(text)


def print_remark(text: str) -> None:
    """Print a remark for people on stderr, apart from the output."""
    if sys.stderr:
        sys.stderr.write(f"{text}\n")


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless ``yes``. A no ends the command.

    Raises InvalidOption if nobody can answer because stdin is not a terminal.
    """
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
    sys.stdout.write(json.dumps(value, ensure_ascii=plain) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table. If stdout is not a terminal, it has no colours and each row is one line."""
    listed = [list(row) for row in rows]
    if sys.stdout.isatty():
        Console(highlight=False).print(table_of(columns, listed))
        return
    lines = [list(columns), *([cell_text(cell) for cell in row] for row in listed)]
    widths = [min(max(map(len, cells)), WIDEST_COLUMN) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print_line("  ".join(cells).rstrip())


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Build a table for a terminal, without borders. Columns of numbers are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    listed = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[at], int | float) for row in listed)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(
            *(Text(cell_text(cell)) for cell in row)
        )  # Text, so that rich prints [red] as it is
    return table


def cell_text(value: Any) -> str:
    """Format a cell: numbers with thousands separators, yes or no for bool, "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
