"""Shares of the tests: each commit runs another one, so that a few commits run all."""

import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

# Of the tests marked long, a commit runs one in so many.
EVERY = 3


def without_a_turn(items: Iterable[Any], turn: int, others_every: int = 1) -> list[Any]:
    """The tests whose turn it is not: of the long ones of a file, and of its others.

    A test marked long(every=N) has its turn once in N commits, one marked long once in 3.
    """
    places: defaultdict[tuple[str, int], Any] = defaultdict(itertools.count)
    left_out = []
    for item in items:
        marker = item.get_closest_marker("long")
        every = marker.kwargs.get("every", EVERY) if marker else others_every
        # Each file begins elsewhere: else all single tests would have one turn.
        first = zlib.crc32(item.path.name.encode())
        if (first + next(places[str(item.path), every])) % every != turn % every:
            left_out.append(item)
    return left_out
