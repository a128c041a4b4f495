"""Max-min fair sharing: divide a limit evenly among topics or slots."""

from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T", int, str)


def share_evenly(wanted: Mapping[_T, int], limit: int, seq: int) -> dict[_T, int]:
    """Divide ``limit`` evenly among the keys of ``wanted``. Returns the shares above 0.

    wanted: the most that each key can take. A share that one key does not need goes to the others.
    seq: the number of the batch. A remainder that cannot be divided evenly goes to different keys
    from batch to batch.
    """
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
