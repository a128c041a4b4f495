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
from rmq_spark.protocol.bodies import Headers

# In a pipe, a longer cell moves the rest of its line to the right.
WIDEST_COLUMN = 60
SHOWN_BYTES = 200


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


def messages_text(how_many: int) -> str:
    """Format a number of messages, such as ``1 message`` or ``2,000 messages``."""
    return count_text(how_many, "message")


def count_text(how_many: int, one: str, several: str = "") -> str:
    """Format a number of things, such as ``1 slot`` or ``64 slots``.

    several: the plural, unless it is the singular with an s.
    """
    return f"{how_many:,} {one if how_many == 1 else several or f'{one}s'}"


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


def time_text(ms: int | None) -> str | None:
    """Format a time in ms since 1970 as ISO 8601 in UTC.

    A time beyond Python's calendar becomes ``N ms``, and None stays None.
    """
    if ms is None:
        return None
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return text.replace("+00:00", "Z")


def time_json(ms: int | None) -> str | int | None:
    """Convert a time in ms since 1970 for JSON, to ISO 8601 in UTC.

    A time beyond Python's calendar stays a number, and None stays None.
    """
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


def content_text(content: bytes | None) -> str:
    """Format a content or key for people. Escapes control characters and bytes that are not UTF-8.

    None becomes the empty text. Cuts a content of more than SHOWN_BYTES; --json shows all of it.
    """
    if content is None:
        return ""
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def content_json(content: bytes | None, name: str = "content") -> dict[str, str | None]:
    """Convert a content to a JSON field: content, or contentBase64 if it is not UTF-8.

    name: the field's name, such as "key".
    """
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content or b"").decode()}


def headers_json(headers: Headers) -> list[dict[str, str | None]]:
    """Convert headers to JSON: the key of each, and its value as value or valueBase64."""
    return [{"key": name, **content_json(value, "value")} for name, value in headers]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a mapping, without the values that are None."""
    return {name: value for name, value in values.items() if value is not None}
