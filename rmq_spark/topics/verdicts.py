"""What becomes of a message whose function fails, and what a function may raise to decide it."""

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
from rmq_spark.topics.reasons import one_line, parse_reason, reason_of

Reason = str | BaseException
ACCEPTED_DELAY = f"{ACCEPTED_DURATION}, and up to {duration_text(LONGEST_DURATION_MS)}"


class Ending(StrEnum):
    """What a rollback does with messages.

    RETRY: they are redelivered, which costs a retry, or die if none is left. UNCHARGED: they are
    redelivered at no cost, with the retries that they had. UNREAD: nobody got them, so they return
    as they were. BURY: they die, whatever retries are left.
    """

    RETRY = "retry"
    UNCHARGED = "uncharged"
    UNREAD = "unread"
    BURY = "bury"


class Failure(NamedTuple):
    """Why and how a message is rolled back.

    delay_ms: the wait before a retry; None for the listener's or the topic's. holds: whether
    its whole consumer group gets nothing for so long.
    """

    reason: str
    ending: Ending = Ending.RETRY
    delay_ms: int | None = None
    holds: bool = False

    def after(self, delay_ms: int | None) -> "Failure":
        """Return this failure with a delay if it is a retry that has none of its own."""
        is_open = self.ending is Ending.RETRY and self.delay_ms is None
        return self._replace(delay_ms=delay_ms) if is_open else self


class Verdict(Exception):
    """The base class of Retry, Bury, Snooze and Hold."""

    # Of an object whose class, a user's, does not call __init__.
    _rmq_ending = Ending.RETRY
    _rmq_holds = False
    _rmq_delay_ms: int | None = None
    _rmq_reason: Reason | None = None

    def __init__(self, delay: Duration | None, reason: Reason | None, *args: object) -> None:
        super().__init__(*args)
        parse_reason(reason)
        self._rmq_reason = "" if reason is None else reason
        self._rmq_delay_ms = None if delay is None else parse_delay_ms(delay)

    def __str__(self) -> str:
        reason = self._rmq_reason
        return super().__str__() if reason is None else parse_reason(reason)


class Retry(Verdict):
    """Raise this in a function to get its message again after ``delay``, which costs a retry.

    delay: such as "10m"; a timedelta; ms; None for the wait that any exception has. reason: a text
    or an exception, for the dead queue if no retry is left.
    """

    def __init__(self, delay: Duration | None = None, reason: Reason | None = None) -> None:
        super().__init__(delay, reason, delay, reason)


class Bury(Verdict):
    """Raise this in a function to move its message to the dead queue, whatever retries are left.

    reason: a text or an exception, which the dead queue keeps.
    """

    _rmq_ending = Ending.BURY

    def __init__(self, reason: Reason | None = None) -> None:
        super().__init__(None, reason, reason)


class Snooze(Verdict):
    """Raise this in a function to get its message again after ``delay``, without losing a retry.

    A message can be snoozed again and again, until it expires. delay: such as "5m"; a
    timedelta; ms.
    """

    _rmq_ending = Ending.UNCHARGED

    def __init__(self, delay: Duration) -> None:
        if delay is None:
            raise InvalidOption.of("delay", delay, ACCEPTED_DELAY)
        super().__init__(delay, None, delay)


class Hold(Snooze):
    """Raise this in a function to make its whole consumer group wait, without losing a retry.

    For a service that answers "too many requests". For ``delay``, no reader of the group gets a
    message of the topic, whatever the program. Calls that have begun go on; the messages that
    this listener has taken and not begun are given back.
    """

    _rmq_holds = True


def parse_delay_ms(delay: Duration) -> int:
    """Turn the wait before a message is redelivered into ms. Raises InvalidOption."""
    delay_ms = parse_wait_ms("delay", delay)
    if delay_ms > LONGEST_DURATION_MS:
        raise InvalidOption.of("delay", delay, ACCEPTED_DELAY, "is too long")
    return delay_ms


def failure_of(error: BaseException) -> Failure:
    """Return what an exception that a function has raised means for its message.

    A group of exceptions with a single one in it, as of asyncio.TaskGroup, means what that one
    means. A verdict without a reason has that of the exception from which it was raised. The
    reason of a subclass begins with its name, under which it is counted.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, Verdict):
        return Failure(reason_of(error))
    ending, delay_ms, given = error._rmq_ending, error._rmq_delay_ms, error._rmq_reason
    if ending is Ending.UNCHARGED and delay_ms is None:  # a class that does not call __init__
        return Failure(reason_of(error))
    cause = given if isinstance(given, BaseException) else None if given else error.__cause__
    reason = reason_of(error if cause is None else cause)
    if cause is not None and type(error) not in (Retry, Bury, Snooze, Hold):
        has_own = given != ""
        reason = reason_of(error) if has_own else one_line(f"{type(error).__name__}: ", reason)
    return Failure(reason, ending, delay_ms, error._rmq_holds)
