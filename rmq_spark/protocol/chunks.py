"""Functions that split long lists into parts of a bounded size."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


def chunks(values: Sequence[_T], size: int) -> list[Sequence[_T]]:
    """Split values into parts of at most ``size``, in order."""
    return [values[at : at + size] for at in range(0, len(values), size)]


def in_parts(calls: Sequence[_T], run: Callable[[Sequence[_T]], list[Any]], size: int) -> list[Any]:
    """Run calls in parts of at most ``size``. Return the replies to all of them, in order."""
    return [reply for part in chunks(calls, size) for reply in run(part)]
