"""A search, by halving, for the messages of a batch that a target can never take."""

from collections.abc import Callable, Mapping, Sequence

from rmq_spark.jobs.databases.database import Refusal
from rmq_spark.jobs.program import JobFailed

# Writes the messages between two numbers, inclusive. Returns None if it wrote all of them, or
# writes no message and returns the reason.
Attempt = Callable[[int, int], Refusal | None]


class TooManyRefused(JobFailed):
    """An error for a batch with more refused messages than --max-refused allows."""


def refused_among(numbers: Sequence[int], attempt: Attempt, most: int) -> dict[int, Refusal]:
    """Write all messages that the target takes. Return the refused ones, by number.

    numbers: the numbers of the messages, ascending. most: the number of refused messages that is
    allowed. Each of them costs about ``2 * log2(len(numbers))`` attempts. Raises TooManyRefused if
    there are more.
    """
    refused: dict[int, Refusal] = {}
    waiting = [numbers] if numbers else []
    while waiting:
        some = waiting.pop()
        why = attempt(some[0], some[-1])
        if why is None:
            continue
        if len(some) > 1:
            half = len(some) // 2
            waiting += [some[half:], some[:half]]  # pop takes the first half next: in order
            continue
        refused[some[0]] = why
        check_amount(refused, most)
    return refused


def check_amount(refused: Mapping[int, object], most: int) -> None:
    """Raise TooManyRefused if more messages are refused than allowed."""
    if len(refused) > most:
        last = [*refused.values()][-1]
        raise TooManyRefused(
            f"More than {most} messages of one batch were refused. Nothing of the batch was "
            "committed. If the refusals are right, raise --max-refused and start the job "
            f"again. The last one: {' '.join(str(last).split())}"
        )
