"""The output of commands: tables for people, JSON for programs."""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmq_spark.errors import InvalidOption

# A cell that is longer than this moves the rest of its line to the right.
WIDEST_COLUMN = 60
SHOWN_BYTES = 200


def print_line(text: str) -> None:
    """Print a line for people."""
    sys.stdout.write(f"{text}\n")


def print_result(as_json: bool, text: str, **values: Any) -> None:
    """Print the result of a command: a line for people, or a JSON object for programs."""
    if as_json:
        print_json(values)
    else:
        print_line(text)


def print_remark(text: str) -> None:
    """Print a remark for people on stderr, apart from the output."""
    if sys.stderr:
        sys.stderr.write(f"{text}\n")


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless ``yes``. Raises InvalidOption if stdin is not a terminal."""
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise InvalidOption(
            f"{question} Nobody can answer: stdin is not a terminal. To go ahead, add --yes."
        )
    typer.confirm(question, abort=True)


def messages_text(how_many: int) -> str:
    """Format a number of messages, such as ``1 message`` or ``2,000 messages``."""
    return f"{how_many:,} message{'' if how_many == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(value, ensure_ascii=plain) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table. In a pipe, it has no colours and each row is one line."""
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
    """Build a table without borders, which both people and ``cut`` can read."""
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
    """Format a cell: numbers with thousands separators, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def time_text(ms: int | None) -> str | None:
    """Format a time in ms as ISO 8601 in UTC, or as ``N ms`` if it is out of the calendar."""
    if ms is None:
        return None
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return text.replace("+00:00", "Z")


def time_json(ms: int | None) -> str | int | None:
    """Convert a time in ms for JSON: to ISO 8601, or the number if it is out of the calendar."""
    text = time_text(ms)
    return ms if text is None or text.endswith(" ms") else text


def age_text(ms: int | None) -> str:
    """Format a duration in ms in its two largest units, such as ``2h5m``; "" for None."""
    if ms is None:
        return ""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            smaller = {"d": ("h", 3600), "h": ("m", 60), "m": ("s", 1)}[unit]
            return f"{seconds // size}{unit}{seconds % size // smaller[1]}{smaller[0]}"
    return f"{seconds}s"


def content_text(content: bytes) -> str:
    """Format a content for people. Bytes that are not text and control characters are escaped.

    A content of more than SHOWN_BYTES is cut; --json shows all of it.
    """
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def content_json(content: bytes) -> dict[str, str]:
    """Convert a content for programs: to text, or to base64 if it is not UTF-8."""
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"contentBase64": base64.b64encode(content).decode()}


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the values that are None."""
    return {name: value for name, value in values.items() if value is not None}
