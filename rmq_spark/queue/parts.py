"""Long lists cut into parts of a bounded size."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar


class _Sliceable(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> Any: ...


_T = TypeVar("_T")
_S = TypeVar("_S", bound=_Sliceable)


def chunks(values: _S, size: int) -> list[_S]:
    """The values in order, ``size`` at a time."""
    return [values[at : at + size] for at in range(0, len(values), size)]


def in_parts(calls: Sequence[_T], run: Callable[[Sequence[_T]], list[Any]], size: int) -> list[Any]:
    """The replies of all calls, run ``size`` at a time."""
    return [reply for part in chunks(calls, size) for reply in run(part)]
