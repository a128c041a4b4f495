"""Requests as values: calls of scripts, plain reads, and functions that read the replies."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rmq_spark.protocol.messagepack import Pairs

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# A client holds all requests and replies of a pipeline in memory at once.
CALLS_A_PIPELINE = 256

# A Redis command that changes nothing: its name, a key, and its other arguments.
Read = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """A call of a script.

    pairs: score, content, score, content, ..., packed or not. bodies: content, body, content, body,
    ... in the same order. Each becomes one argument behind args, unless it is empty.
    """

    script: str
    keys: Sequence[str]
    args: Sequence[Any] = ()
    pairs: Pairs = ()
    bodies: Pairs = ()


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """Calls of scripts and plain reads, and a function that turns their replies into an answer.

    calls: in the order in which the server runs those of one slot. parse: takes the replies, in
    order. calls_a_pipeline: the number of calls that a client sends at once. last_counts: whether a
    call that runs again is followed by the later calls of its slot, so that these count.
    """

    calls: Sequence[Call | Read]
    parse: Callable[[list[Any]], T_co]
    calls_a_pipeline: int = CALLS_A_PIPELINE
    last_counts: bool = False


# Requests that follow from each other: yields each one, is sent its answer, and returns the answer
# to all of them.
Conversation = Generator[Request[Any], Any, T]


def repeated(
    calls: Sequence[Call],
    next_call: Callable[[int, Any], Call | None],
    calls_a_pipeline: int = CALLS_A_PIPELINE,
) -> Conversation[list[list[Any]]]:
    """Make calls that each do a bounded part of their work, and repeat them until all is done.

    next_call: takes the index of a call and its reply, and returns the call that goes on; None if
    none must.
    Returns for each call the replies to it and to those that went on.
    """
    replies: list[list[Any]] = [[] for _ in calls]
    left = dict(enumerate(calls))
    while left:
        answers = yield Request(list(left.values()), list, calls_a_pipeline)
        again = {}
        for at, reply in zip(left, answers, strict=True):
            replies[at].append(reply)
            following = next_call(at, reply)
            if following is not None:
                again[at] = following
        left = again
    return replies


def while_more(calls: Sequence[Call], flag: int) -> Callable[[int, Any], Call | None]:
    """Return a next_call that repeats each call as it is. flag: an index in the replies."""
    return lambda at, reply: calls[at] if reply[flag] else None


def text_of(number: int | None) -> str:
    """Format a number as an argument of a script; None becomes the empty text."""
    return "" if number is None else str(number)


def fields_of(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, from a reply of RESP2 (a list) or RESP3 (a dict)."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))
