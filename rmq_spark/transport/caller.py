"""Who calls: a thread, or a task of asyncio."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Caller:
    """A thread or a task. number: distinguishes those of one name."""

    kind: str
    name: str
    number: int
    is_alive: Callable[[], bool] = field(compare=False)
