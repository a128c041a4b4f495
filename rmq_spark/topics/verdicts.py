"""What becomes of a message whose function fails, and what a function may raise to decide it."""

from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.parsing import (
    ACCEPTED_DURATION,
    LONGEST_DURATION_MS,
    Duration,
    duration_text,
    parse_wait_ms,
)
from rmq_spark.topics.reasons import parse_reason, reason_of

Reason = str | BaseException
ACCEPTED_DELAY = f"{ACCEPTED_DURATION}, and up to {duration_text(LONGEST_DURATION_MS)}"


class Ending(StrEnum):
    """What a rollback does with messages.

    RETRY: they come again, which costs a retry, or die if none is left. UNCHARGED: they come again
    at no cost, with the retries that they had. BURY: they die, whatever retries are left.
    """

    RETRY = "retry"
    UNCHARGED = "uncharged"
    BURY = "bury"


class Failure(NamedTuple):
    """Why and how a message is rolled back.

    delay_ms: the wait before it comes again; None for the listener's or the topic's.
    """

    reason: str
    ending: Ending = Ending.RETRY
    delay_ms: int | None = None

    def after(self, delay_ms: int | None) -> "Failure":
        """Return this failure with a delay if it is a retry that has none of its own."""
        is_open = self.ending is Ending.RETRY and self.delay_ms is None
        return self._replace(delay_ms=delay_ms) if is_open else self


class Verdict(Exception):
    """The base class of Retry, Bury and Snooze."""

    def __init__(
        self, ending: Ending, delay: Duration | None, reason: Reason | None, *args: object
    ) -> None:
        super().__init__(*args)
        self._text = parse_reason(reason)
        self._cause = reason if isinstance(reason, BaseException) else None
        self._ending = ending
        self._delay_ms = None if delay is None else parse_delay_ms(delay)

    def __str__(self) -> str:
        return self._text

    def failure(self) -> Failure:
        """Return what it means. Without a reason, it has that of the error it was raised from."""
        cause = self._cause if self._text else self.__cause__
        reason = reason_of(self if cause is None else cause)
        return Failure(reason, self._ending, self._delay_ms)


class Retry(Verdict):
    """Raise this in a function to get its message again after ``delay``, which costs a retry.

    delay: such as "10m"; a timedelta; ms; None for the wait that any exception has. reason: a text
    or an exception, for the dead queue if no retry is left.
    """

    def __init__(self, delay: Duration | None = None, reason: Reason | None = None) -> None:
        super().__init__(Ending.RETRY, delay, reason, delay, reason)


class Bury(Verdict):
    """Raise this in a function to move its message to the dead queue, whatever retries are left.

    reason: a text or an exception, which the dead queue keeps.
    """

    def __init__(self, reason: Reason | None = None) -> None:
        super().__init__(Ending.BURY, None, reason, reason)


class Snooze(Verdict):
    """Raise this in a function to get its message again after ``delay``, at no cost of a retry.

    Only its expiry ends a message that is snoozed again and again. delay: such as "5m"; a
    timedelta; ms.
    """

    def __init__(self, delay: Duration) -> None:
        if delay is None:
            raise InvalidOption.of("delay", delay, ACCEPTED_DELAY)
        super().__init__(Ending.UNCHARGED, delay, None, delay)


def parse_delay_ms(delay: Duration) -> int:
    """Turn the wait before a message comes again into ms. Raises InvalidOption."""
    delay_ms = parse_wait_ms("delay", delay)
    if delay_ms > LONGEST_DURATION_MS:
        raise InvalidOption.of("delay", delay, ACCEPTED_DELAY, "is too long")
    return delay_ms


def failure_of(error: BaseException) -> Failure:
    """Return what an exception that a function has raised means for its message."""
    if isinstance(error, Verdict):
        with suppress(Exception):  # such as of a subclass that does not call __init__
            return error.failure()
    return Failure(reason_of(error))
