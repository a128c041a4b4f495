"""What commands print: tables for people, JSON for programs."""

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

# Behind a longer cell the others of its line stand further right.
WIDEST_COLUMN = 60
SHOWN_BYTES = 200


def say(text: str) -> None:
    """Print a line for people."""
    sys.stdout.write(f"{text}\n")


def tell(as_json: bool, text: str, **values: Any) -> None:
    """Print what was done: a line for people, or an object for programs."""
    if as_json:
        print_json(values)
    else:
        say(text)


def note(text: str) -> None:
    """Print a remark for people beside the output, on stderr."""
    if sys.stderr:
        sys.stderr.write(f"{text}\n")


def confirm(question: str, yes: bool) -> None:
    """Ask, unless yes answers. Raises InvalidOption where nobody can answer."""
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise InvalidOption(f"{question} Nobody can be asked: stdin is no terminal. Say --yes.")
    typer.confirm(question, abort=True)


def messages_text(how_many: int) -> str:
    """Return a number of messages in words."""
    return f"{how_many:,} message{'' if how_many == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(value, ensure_ascii=plain) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; in a pipe without colours, and each row in one line."""
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
    """Return a table without lines around it, for people and for cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    listed = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[at], int | float) for row in listed)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(text_of(cell)) for cell in row))  # [red] is a content like others
    return table


def text_of(value: Any) -> str:
    """Return a cell: numbers with a comma at thousands, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def time_text(ms: int | None) -> str | None:
    """Return a time as ISO 8601 in UTC; a number of ms where a calendar has no such day."""
    if ms is None:
        return None
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return text.replace("+00:00", "Z")


def time_json(ms: int | None) -> str | int | None:
    """Return a time as JSON has it: time_text, or the number of ms itself."""
    text = time_text(ms)
    return ms if text is None or text.endswith(" ms") else text


def age_text(ms: int | None) -> str:
    """Return a duration in its two largest units."""
    if ms is None:
        return ""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            smaller = {"d": ("h", 3600), "h": ("m", 60), "m": ("s", 1)}[unit]
            return f"{seconds // size}{unit}{seconds % size // smaller[1]}{smaller[0]}"
    return f"{seconds}s"


def content_text(content: bytes) -> str:
    """Return a content for people: bytes that are not text, and control characters, escaped.

    A long content is cut; --json shows all of it.
    """
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def content_json(content: bytes) -> dict[str, str]:
    """Return a content for programs: as text, or as base64 if it is not UTF-8."""
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"contentBase64": base64.b64encode(content).decode()}


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
