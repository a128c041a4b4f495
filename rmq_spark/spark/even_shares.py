"""A limit, shared evenly among those who want some of it."""

from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T", int, str)


def evenly(wanted: Mapping[_T, int], limit: int, seq: int) -> dict[_T, int]:
    """What each is given of ``limit`` in all: as allocate says of slots."""
    given: dict[_T, int] = {}
    left = limit
    by_need = sorted(wanted, key=lambda one: (wanted[one], one))
    for at, one in enumerate(by_need):
        share, extra = divmod(left, len(by_need) - at)
        if wanted[one] > share:
            hungry = sorted(by_need[at:])
            given |= dict.fromkeys(hungry, share)
            for step in range(extra):
                given[hungry[(seq * extra + step) % len(hungry)]] += 1
            break
        given[one] = wanted[one]
        left -= wanted[one]
    return {one: count for one, count in given.items() if count}
