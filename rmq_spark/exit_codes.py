"""Exit codes of the command ``rmq`` and of the jobs."""

import signal

from rmq_spark.errors import InvalidMessage, InvalidOption, RmqError, UnknownTopic

DONE, FAILED, MISUSED, NOTHING_FOUND = 0, 1, 2, 3
# The user can correct these on the command line; the other errors have causes elsewhere.
MISUSES = (InvalidOption, InvalidMessage, UnknownTopic)


def of_error(error: RmqError) -> int:
    """Return the exit code of a program that an error ends."""
    return MISUSED if isinstance(error, MISUSES) else FAILED


def of_signal(number: int) -> int:
    """Return the exit code of a program that a signal ends."""
    return 128 + number


INTERRUPTED = of_signal(signal.SIGINT)
