"""Find by halving the messages of a batch that a target can never take."""

from collections.abc import Callable, Sequence

from rmq_spark.jobs.database import Refusal
from rmq_spark.jobs.program import JobFailed

# Write the messages from one number to another, inclusive: all, or none and return the reason.
Attempt = Callable[[int, int], Refusal | None]


class TooManyRefused(JobFailed):
    """More messages of a batch are refused than --max-refused allows."""


def refused_among(numbers: Sequence[int], attempt: Attempt, most: int) -> dict[int, Refusal]:
    """Write all messages except those that are refused, and return the refused ones.

    numbers: the numbers of the messages, ascending. Each refused message costs about
    ``2 * log2(len(numbers))`` attempts. Raises TooManyRefused when there are more than ``most``.
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
            waiting += [some[half:], some[:half]]  # the first half is next: rows come in order
            continue
        refused[some[0]] = why
        if len(refused) > most:
            raise TooManyRefused(
                f"More than {most} messages of one batch were refused. Nothing of the batch was "
                "committed. If the refusals are right, raise --max-refused and start the job "
                f"again. The last one: {' '.join(str(why).split())}"
            )
    return refused
