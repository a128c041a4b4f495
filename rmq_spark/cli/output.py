"""What commands print: tables for people, JSON for programs."""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Behind a longer cell the others of its line stand further right.
WIDEST_COLUMN = 60
SHOWN_BYTES = 200


def say(text: str) -> None:
    """A line for people."""
    sys.stdout.write(f"{text}\n")


def tell(as_json: bool, text: str, **values: Any) -> None:
    """What was done: a line for people, or an object for programs."""
    if as_json:
        print_json(values)
    else:
        say(text)


def print_json(value: Any) -> None:
    """One line of JSON."""
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(value, ensure_ascii=plain) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; in a pipe without colours, and a line a row however long it is."""
    listed = [list(row) for row in rows]
    if sys.stdout.isatty():
        Console(highlight=False).print(table_of(columns, listed))
        return
    lines = [list(columns), *([text_of(cell) for cell in row] for row in listed)]
    widths = [min(max(map(len, cells)), WIDEST_COLUMN) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(cells).rstrip())


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table without lines around it, which may be cut by column as well as read."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    listed = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[at], int | float) for row in listed)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(text_of(cell)) for cell in row))  # [red] is a content like others
    return table


def text_of(value: Any) -> str:
    """A cell: numbers with thousands apart, nothing where there is nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def time_text(ms: int | None) -> str | None:
    """A time as ISO 8601 in UTC; a number of ms where a calendar has no such day."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def age_text(ms: int | None) -> str:
    """How long ago: the two largest units."""
    if ms is None:
        return ""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            smaller = {"d": ("h", 3600), "h": ("m", 60), "m": ("s", 1)}[unit]
            return f"{seconds // size}{unit}{seconds % size // smaller[1]}{smaller[0]}"
    return f"{seconds}s"


def content_text(content: bytes) -> str:
    """A content for people: what is no text shows as escapes, and nothing moves the cursor.

    Of a long one the beginning; --json shows all.
    """
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def content_json(content: bytes) -> dict[str, str]:
    """A content for programs: text, or what is no text as base64."""
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"contentBase64": base64.b64encode(content).decode()}


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """What there is."""
    return {name: value for name, value in values.items() if value is not None}
