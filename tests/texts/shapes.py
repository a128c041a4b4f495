"""Rules of Markdown: tables that a renderer shows whole, and no list that nobody wrote."""

import re
from collections.abc import Iterator

from .page import Page
from .pages import linking

_SEPARATOR = re.compile(r"\|(\s*:?-+:?\s*\|)+")
_MARK = re.compile(r"( *)([-+*]|\d+[.)]) +\S")


def broken_tables(page: Page) -> Iterator[str]:
    """A table begins with a head and a line of dashes, and all its rows have as many cells."""
    # A bar within code ends a cell as well, unless a backslash is before it.
    lines = [re.sub(r"\\.", "xx", line).strip() for line in linking(page.text).splitlines()]
    columns = 0
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            columns = 0
            continue
        cells = line.count("|") - 1
        below = lines[number] if number < len(lines) else ""
        if not columns and not _SEPARATOR.fullmatch(below):
            yield f"{page.name}:{number}: a row outside a table. Remove the blank line above it"
        elif columns and cells != columns:
            yield f"{page.name}:{number}: a row of {cells} cells. Write {columns}"
        columns = columns or cells


def accidental_lists(page: Page) -> Iterator[str]:
    """A line of prose that begins like an item of a list becomes one.

    An item follows a blank line, or an item of the same list. A numbered list begins with 1.
    """
    items: dict[str, str] = {}  # by indent, the mark of the last item of an open list
    before = ""
    for number, line in enumerate(linking(page.text).splitlines(), 1):
        found = _MARK.match(line)
        if found is not None:
            indent, mark = found.groups()
            if not _continues(items.get(indent), mark) and (before or not _begins(mark)):
                yield (
                    f"{page.name}:{number}: {mark} makes this line an item of a list. Move the "
                    "word, or write a blank line above the list"
                )
            items = {at: last for at, last in items.items() if len(at) < len(indent)}
            items[indent] = mark
        elif line and not line.startswith(" ") and not before:
            items = {}  # a paragraph after a list
        before = line.strip()


def _begins(mark: str) -> bool:
    return mark in ("-", "1.")


def _continues(last: str | None, mark: str) -> bool:
    if last is None or not last[:-1].isdigit():
        return last == mark
    return mark == f"{int(last[:-1]) + 1}{last[-1]}"
