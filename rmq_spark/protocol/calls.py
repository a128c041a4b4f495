"""Requests as values: calls of scripts, plain reads, and functions that read the replies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rmq_spark.protocol.messagepack import Pairs

T_co = TypeVar("T_co", covariant=True)

# A client holds the requests and replies of one pipeline in memory whole.
CALLS_A_PIPELINE = 256

# A plain command that changes nothing: its name, a key, further words.
Read = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One call of one script.

    pairs: the last argument: score, content, score, content, ..., packed or not.
    """

    script: str
    keys: Sequence[str]
    args: Sequence[Any] = ()
    pairs: Pairs = ()


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """Calls of scripts, plain reads, and a function that turns all their replies into an answer.

    read: gets the replies to the calls in their order, then those to the reads. a_pipeline: how
    many calls a client sends at once.
    """

    calls: Sequence[Call]
    read: Callable[[list[Any]], T_co]
    reads: Sequence[Read] = ()
    a_pipeline: int = CALLS_A_PIPELINE


@dataclass(frozen=True)
class BoundedRequest(Generic[T_co]):
    """Calls of a script that does its work in parts; each call repeats until the work is done.

    more: the place in a reply that says whether there is more to do. read: gets the replies of each
    call, one or more, in the order of the calls.
    """

    calls: Sequence[Call]
    more: int
    read: Callable[[list[list[Any]]], T_co]
    a_pipeline: int = CALLS_A_PIPELINE


def text_of(number: int | None) -> str:
    """Return a number as scripts take it; the empty text for None."""
    return "" if number is None else str(number)


def fields_of(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, whichever protocol version the client speaks."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))
