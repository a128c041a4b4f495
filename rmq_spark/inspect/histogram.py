"""Bars for the due times or the priorities of waiting messages, which are counted, not read."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.inspect.fields import time_json
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, QueueKind
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import HIGHEST_SCORE, LOWEST_SCORE

MOST_BARS = 20
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
TIME_WIDTHS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * number for number in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * number for number in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * number for number in (1, 2, 3, 6, 12)),
    *(_DAY * number for number in (1, 2, 7, 14, 30, 90, 180, 365)),
    *(_DAY * 365 * 10**power for power in range(1, 7)),
)
NUMBER_WIDTHS = tuple(step * 10**power for power in range(16) for step in (1, 2, 5))
# The score of a waiting retry is a full second in ms plus less than 1000: retries left and
# suspicion. A second plus this number is therefore at or above the scores of all its retries.
_RETRIES_WITHIN_SECOND = 999
# Below the scores in a store that are negative, whose absolute value is part of such a score.
_LOWEST_OF_ALL = -1000
# Takes ascending edges. Returns the number of messages below each edge.
Below = Callable[[Sequence[int]], list[int]]


class Bar(NamedTuple):
    """One bar: the number of messages from low (inclusive) to high (exclusive).

    Bounds are times in ms since 1970, or priorities; None means no bound. A bar of priorities
    without bounds counts rolled-back messages.
    """

    low: int | None
    high: int | None
    messages: int


def time_bars(below: Below, now_ms: int, times: Bounds) -> list[Bar]:
    """Build the bars of due times, from the first to the last message or within ``times``.

    below: counts the messages below given times. Messages that are due now (or before times.low)
    share one bar. Messages from times.high on share another. Raises InvalidOption unless times.low
    is before times.high.
    """
    low = now_ms + 1 if times.low is None else times.low
    high = HIGHEST_SCORE + 1 if times.high is None else times.high
    if low >= high:
        raise InvalidOption("--from is not before --until. Accepted: a later --until.")
    before, up_to, total = below([low, high, HIGHEST_SCORE + 1])
    bars = fitted(
        below,
        Bar(low, high, up_to - before),
        TIME_WIDTHS,
        keep=(times.low is not None, times.high is not None),
    )
    earlier = [Bar(None, low, before)] if before else []
    later = [Bar(high, None, total - up_to)] if total > up_to else []
    return [*earlier, *bars, *later]


def fitted(
    below: Below, whole: Bar, widths: Sequence[int], keep: tuple[bool, bool] = (False, False)
) -> list[Bar]:
    """Divide the range of ``whole`` into at most MOST_BARS bars of a round width.

    widths: the round widths, ascending. keep: whether the first and the last bar stay at the bounds
    of ``whole`` even if they are empty. Otherwise the range shrinks until they hold messages.
    Returns no bars for a range without messages.
    """
    low, high = whole.low or 0, whole.high or 0
    while True:
        edges = _edges(low, high, widths)
        counts = below(edges)
        bars = [
            Bar(first, past, count - before)
            for (first, past), (before, count) in zip(
                pairwise(edges), pairwise(counts), strict=True
            )
        ]
        filled = [bar for bar in bars if bar.messages]
        if not filled:
            return []
        tight = low if keep[0] else filled[0].low or 0, high if keep[1] else filled[-1].high or 0
        if tight == (low, high):
            return bars
        low, high = tight


def bars_of(queue: Queue, now_ms: int, times: Bounds = UNBOUNDED) -> list[Bar]:
    """Count the bars of a queue: of due times; or of priorities, then of rolled-back messages."""
    if queue.definition.type.has_due_times:
        return time_bars(lambda edges: count_due_before(queue, edges), now_ms, times)
    first, again = _count_below_priority(queue, [HIGHEST_SCORE + 1])[0], _count_rolled_back(queue)
    bars = fitted(
        lambda edges: _count_below_priority(queue, edges),
        Bar(LOWEST_SCORE, HIGHEST_SCORE + 1, first),
        NUMBER_WIDTHS,
    )[::-1]
    return [*bars, Bar(None, None, again)] if again else bars


def _edges(low: int, high: int, widths: Sequence[int]) -> list[int]:
    """Return both bounds, and between them the multiples of the smallest width that suffices."""
    width = next(w for w in widths if -(-high // w) - low // w <= MOST_BARS)
    return [low, *range((low // width + 1) * width, high, width), high]


def count_due_before(queue: Queue, edges: Sequence[int]) -> list[int]:
    last = [edge - 1 for edge in edges]
    waits = [time // 1000 * 1000 + _RETRIES_WITHIN_SECOND for time in last]
    stored = _count_up_to(queue, last, QueueKind.STORE)
    retried = _count_up_to(queue, waits, QueueKind.RETRY)
    return [sum(pair) for pair in zip(stored, retried, strict=True)]


def _count_below_priority(queue: Queue, edges: Sequence[int]) -> list[int]:
    # No double lies between the highest score and the one that is higher by 2.
    edges = [edge + (edge > HIGHEST_SCORE) for edge in edges]
    from_each = _count_up_to(queue, [LOWEST_SCORE, *edges], QueueKind.STORE)
    return [from_each[0] - count for count in from_each[1:]]


def _count_rolled_back(queue: Queue) -> int:
    """Count the rolled-back messages, which have lost their priority."""
    every, first = _count_up_to(queue, [_LOWEST_OF_ALL, LOWEST_SCORE], QueueKind.STORE)
    return every - first + sum(queue.ask(reading.sizes, [QueueKind.RETRY], queue.slots))


def _count_up_to(queue: Queue, scores: Sequence[int], kind: QueueKind) -> list[int]:
    """Count the messages up to and with each score in delivery order, over all slots."""
    by_slot = queue.ask(reading.counts, queue.slots, scores, kind)
    return [sum(column) for column in zip(*by_slot, strict=True)]


def bar_json(topic: TopicDefinition, bar: Bar) -> dict[str, Any]:
    if topic.type.has_due_times:
        low, high = time_json(bar.low), time_json(bar.high)
        return {"dueTimeFrom": low, "dueTimeUntil": high, "messages": bar.messages}
    highest = None if bar.high is None else bar.high - 1
    return {"priorityFrom": bar.low, "priorityTo": highest, "messages": bar.messages}
