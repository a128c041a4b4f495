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

# Where nobody looks, a line is as long as it needs.
UNBOUNDED_WIDTH = 10_000


def console() -> Console:
    """stdout; no colours, and lines of any length, where it is no terminal."""
    width = None if sys.stdout.isatty() else UNBOUNDED_WIDTH
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


def say(text: str) -> None:
    """A line for people."""
    console().print(text, markup=False)


def tell(as_json: bool, text: str, **values: Any) -> None:
    """What was done: a line for people, or an object for programs."""
    if as_json:
        print_json(values)
    else:
        say(text)


def print_json(value: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers stand right."""
    console().print(table_of(columns, rows))


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
    """A content for people: what is no text shows as escapes, and nothing moves the cursor."""
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
