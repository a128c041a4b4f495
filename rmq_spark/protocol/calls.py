"""Requests as values: calls of scripts, plain reads, and functions that read the replies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rmq_spark.protocol.messagepack import Pairs

T_co = TypeVar("T_co", covariant=True)

# A client holds all requests and replies of a pipeline in memory at once.
CALLS_A_PIPELINE = 256

# A Redis command that changes nothing: its name, a key, and its other arguments.
Read = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """A call of a script.

    pairs: score, content, score, content, ..., packed or not. They become the last argument.
    """

    script: str
    keys: Sequence[str]
    args: Sequence[Any] = ()
    pairs: Pairs = ()


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """Calls of scripts, plain reads, and a function that turns their replies into an answer.

    parse: takes the replies to the calls, in order, followed by those to the reads.
    calls_a_pipeline: the number of calls that a client sends at once.
    """

    calls: Sequence[Call]
    parse: Callable[[list[Any]], T_co]
    reads: Sequence[Read] = ()
    calls_a_pipeline: int = CALLS_A_PIPELINE


@dataclass(frozen=True)
class BoundedRequest(Generic[T_co]):
    """Calls of a script that does a bounded part of its work; each is repeated until done.

    more_at: the index, in a reply, of the flag that says whether work remains. parse: takes one
    list for each call, in order, with the replies to the call and its repetitions.
    """

    calls: Sequence[Call]
    more_at: int
    parse: Callable[[list[list[Any]]], T_co]
    calls_a_pipeline: int = CALLS_A_PIPELINE


def text_of(number: int | None) -> str:
    """Format a number as an argument of a script; None becomes the empty text."""
    return "" if number is None else str(number)


def fields_of(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, from a reply of RESP2 (a list) or RESP3 (a dict)."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))
