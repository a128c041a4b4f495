"""The listener for plain Python: calls a function for every message."""

import threading
import time
from collections.abc import Callable
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.dispatcher import Dispatcher
from rmq_spark.client.receiving.listener_settings import ListenerSettings, place_of
from rmq_spark.client.receiving.own_loop import OWN_LOOP
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.client.receiving.workers import Workers
from rmq_spark.errors import ConsumerMisused
from rmq_spark.process import Background, UnfailingLog, stopped_by_signals
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.definition import group_text, refuse_exclusive
from rmq_spark.topics.parsing import Duration, parse_wait_ms

_log = UnfailingLog(__name__)

HAS_RUN = "This listener has run. Make another one with broker.listen."
# How long a stop waits for running calls.
DEFAULT_GRACE = "30s"
# A loop that has not come round for so long is stuck. A Redis that is away holds it up for less.
_STUCK_AFTER_S = 120.0


class Counts:
    """What the calls of a listener have come to until now; all 0 before it runs."""

    @property
    def opened(self) -> "Listener | None":
        """The listener that reads the topic; None before it is open."""
        raise NotImplementedError

    @property
    def _counting(self) -> Any:
        """Who counts, or None before it runs."""
        raise NotImplementedError

    @property
    def succeeded(self) -> int:
        """The number of messages for which the function has succeeded."""
        return getattr(self._counting, "succeeded", 0)

    @property
    def failed(self) -> int:
        """The number of messages for which the function has failed, Retry and Bury included."""
        return getattr(self._counting, "failed", 0)

    @property
    def snoozed(self) -> int:
        """The number of messages for which the function has raised Snooze or Hold."""
        return getattr(self._counting, "snoozed", 0)

    @property
    def left_alone(self) -> int:
        """The number of failed or snoozed messages whose lease ended: they are redelivered."""
        return getattr(self._counting, "left_alone", 0)

    @property
    def at_work(self) -> int:
        """The number of workers at work."""
        return getattr(self._counting, "at_work", 0)

    def timings(self) -> Timings:
        """Return how long the calls of the function took until now, and how late they began."""
        return Timings() if self._counting is None else self._counting.timings()


class Listener(Counts, Background):
    """Calls a function for every message of a topic. From ``broker.listen``.

    ::

        broker.listen("Orders", "billing", bill, workers=8, timeout="30s").run()

    ``run`` returns when ``stop`` is called or, in the main thread, at SIGTERM or SIGINT. Or use the
    listener in a ``with`` statement, which runs it in a thread of its own::

        with broker.listen("Orders", "billing", bill):
            serve()

    ``topic``, ``group`` and ``name`` say what it reads.
    """

    _thread_name = "rmq-listener"
    _log = _log

    def __init__(
        self, open_queue: Callable[[], Queue], name: str, settings: ListenerSettings
    ) -> None:
        """Take nothing yet. Raises InvalidOption, UnknownTopic, ExclusiveSlot.

        open_queue: opens the queue with the topic's current definition.
        """
        super().__init__()
        self.name = name
        self._settings = settings
        self._open_queue = open_queue
        queue = open_queue()
        if settings.ensemble is None:
            refuse_exclusive(queue.definition)
        self.topic, self.group = queue.definition.name, queue.keys.group
        self._open_caller = settings.callers(self.group)
        self._stopping = threading.Event()
        self._is_stopped = False  # at once, even if the event is set in another thread
        self._grace_s = _seconds(DEFAULT_GRACE)
        self._stopped_s: float | None = None
        self._dispatcher: Dispatcher | None = None  # set by run

    def __repr__(self) -> str:
        return f"Listener({self})"

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}, group {group_text(self.group)}"

    def __exit__(self, *error: object) -> None:
        if self.is_running:  # else it has stopped with a grace of its own, or by an error
            self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error[0] is None:
            raise self._error

    @property
    def is_running(self) -> bool:
        """Whether it takes messages: it has begun, and neither a stop nor an error has ended it."""
        is_over = self._is_stopped or self._stopping.is_set() or self._error is not None
        return self._begun.is_set() and not is_over

    @property
    def is_ready(self) -> bool:
        """Whether it takes messages, and Redis answers it."""
        return self.is_running and self._dispatcher is not None and not self._dispatcher.is_away

    @property
    def is_stuck(self) -> bool:
        """Whether it should take messages, or wait for Redis, but hangs or has ended by an error.

        A supervisor should start the program again.
        """
        dispatcher = self._dispatcher
        if self._error is not None or (dispatcher is not None and dispatcher.error is not None):
            return True
        if dispatcher is None or not self.is_running:
            return False
        if self._settings.uses_own_loop and OWN_LOOP.silent_s > _STUCK_AFTER_S:
            return True
        return time.monotonic() - dispatcher.came_round_s > _STUCK_AFTER_S

    @property
    def function(self) -> Callable[[Delivered], Any]:
        """The function that it calls."""
        return self._settings.function

    @property
    def workers(self) -> int:
        """The number of its workers."""
        return self._settings.workers

    @property
    def opened(self) -> "Listener":
        """This listener, which is open as soon as it is made."""
        return self

    @property
    def _counting(self) -> Workers | None:
        return None if self._dispatcher is None else self._dispatcher.workers

    def stop(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Let ``run`` take nothing more, finish what is in progress, and return.

        grace: how long it waits for running calls. After that their messages are given back at the
        cost of a retry. Messages whose call has not begun are given back at no cost. A second call
        can shorten the grace. Any thread or signal handler can call it.
        """
        grace_s = _seconds(grace)
        self._grace_s = min(grace_s, self._grace_s) if self._is_stopped else grace_s
        self._is_stopped = True
        self._stopped_s = self._stopped_s or time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            self._take_no_more()
            return
        # A signal handler may have interrupted this thread while it has a lock that this needs.
        try:
            threading.Thread(target=self._take_no_more, daemon=True).start()
        except RuntimeError:  # the program ends: no thread can begin, and no handler interrupts
            self._take_no_more()

    def _take_no_more(self) -> None:
        self._stopping.set()
        if self._dispatcher is not None:
            self._dispatcher.wake()

    def run(self, *, grace: Duration = DEFAULT_GRACE) -> None:
        """Call the function for messages until ``stop`` is called, or a signal comes.

        grace: how long a stop by a signal waits for running calls. A second signal ends the
        program.

        Raises Fenced if another process takes over the name, UnknownTopic if the topic is
        deleted, and other errors of Redis that do not pass by themselves. A Redis that cannot be
        reached is waited for. Raises ConsumerMisused for a second call.
        """
        _seconds(grace)  # a bad one is refused now
        with self._alone():
            if self._dispatcher is not None:
                raise self._used_error()
            self._dispatcher = dispatcher = Dispatcher(
                *(str(self), self._open_queue, self.name, self._settings, self._open_caller),
                *(self._stopping, self._left_s),
            )
            with stopped_by_signals(lambda _: self.stop(grace)):
                _log.info(
                    "rmq: listening to %s as %s, group %s, with %s",
                    *(self.topic, self.name, group_text(self.group), place_of(self.function)),
                )
                self._begun.set()
                dispatcher.run()
                _log.info("rmq: the listener %s has ended", self)
        if dispatcher.error is not None:
            raise dispatcher.error

    def _left_s(self) -> float:
        """Return how long a stop, which may begin just now, still waits for running calls."""
        self._stopped_s = self._stopped_s or time.monotonic()
        return self._stopped_s + self._grace_s - time.monotonic()

    def _title(self) -> str:
        return f"listener {self}"

    def _used_error(self) -> ConsumerMisused:
        return ConsumerMisused(HAS_RUN)


def _seconds(grace: Duration) -> float:
    return parse_wait_ms("grace", grace) / 1000
