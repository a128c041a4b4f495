"""Tables of results, for a page or a terminal."""

from collections.abc import Sequence


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table; the first row has the headings."""
    table = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The same for a terminal."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
