"""Tests that take turns: of those marked in_turn(N), each commit runs one in N."""

import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any


def without_a_turn(items: Iterable[Any], turn: int) -> list[Any]:
    """The tests whose turn it is not. Those of one file with the same N take turns together."""
    places: defaultdict[tuple[str, int], Any] = defaultdict(itertools.count)
    left_out = []
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker is None:
            continue
        [every] = marker.args
        # Each file begins elsewhere: else all single tests would have one turn.
        first = zlib.crc32(item.path.name.encode())
        if (first + next(places[str(item.path), every])) % every != turn % every:
            left_out.append(item)
    return left_out
