"""Which messages of a batch a target refuses for good, found by halving."""

from collections.abc import Callable, Sequence

from rmq_spark.jobs.database import Refusal
from rmq_spark.jobs.program import JobFailed

# Writes messages from one number to another, both included: all of them, or none and why not.
Attempt = Callable[[int, int], Refusal | None]


class TooManyRefused(JobFailed):
    """More messages of a batch are refused than were to be expected."""


def refused_among(numbers: Sequence[int], attempt: Attempt, most: int) -> dict[int, Refusal]:
    """Writes all messages but those that are refused, and returns these.

    numbers: of the messages, ascending. Costs about ``2 * log2(len(numbers))`` attempts for each
    message that is refused. Raises TooManyRefused when there are more than ``most``.
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
                f"More than {most} messages of one batch were refused. If they are right to be "
                "refused, raise --max-refused. Nothing of the batch was committed: it comes again. "
                f"The last one: {' '.join(str(why).split())}"
            )
    return refused
