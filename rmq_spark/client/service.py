"""Functions that say which topics they are for, and a service that runs many of them."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, TypeVar

from rmq_spark.client.broker import Broker, ZooKeeper, connect, parse_zookeeper
from rmq_spark.client.receiving.listener import DEFAULT_GRACE, Listener
from rmq_spark.client.receiving.listener_settings import DEFAULT_WORKERS, ListenerSettings, place_of
from rmq_spark.client.scheduler import Scheduler
from rmq_spark.errors import ConsumerMisused, InvalidOption, UnknownTopic
from rmq_spark.options import DEFAULT_VISIBILITY_TIMEOUT
from rmq_spark.process import HEARD_WITHIN_S, stopped_by_signals
from rmq_spark.topics.definition import check_topic_name, group_text, parse_group
from rmq_spark.topics.keys import DEFAULT_GROUP
from rmq_spark.topics.parsing import Duration, check_amount

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The attribute of a function that holds what `listener` has said of it.
_MARKS = "__rmq_listeners__"


@dataclass(frozen=True, slots=True)
class Marked:
    """A function, and one topic that it is for."""

    topic: str
    group: str
    settings: ListenerSettings


def listener(
    topic: str,
    *,
    group: str = DEFAULT_GROUP,
    workers: int = DEFAULT_WORKERS,
    processes: bool = False,
    timeout: Duration | None = None,
    delay: Duration | None = None,
    visibility_timeout: Duration = DEFAULT_VISIBILITY_TIMEOUT,
) -> Callable[[_Function], _Function]:
    """Mark a function to receive a topic's messages. ``run`` and ``rmq listen`` run it.

    ::

        @rmq_spark.listener("Orders", workers=4, timeout="30s")
        def bill(message): ...

    For functions at the top of a module. The function stays as it is, and can be called as before.
    It may be async, and be marked again for another topic. The settings are those of Broker.listen.
    Raises InvalidOption.
    """
    if not isinstance(topic, str):
        raise InvalidOption(
            f"@rmq_spark.listener got a {type(topic).__name__} instead of the name of a topic. "
            'Accepted: @rmq_spark.listener("Orders"), once for each topic of a function.'
        )
    check_topic_name(topic)
    of_group = parse_group(group) if group != DEFAULT_GROUP else group

    def mark(function: _Function) -> _Function:
        place = place_of(function)
        scope = getattr(function, "__qualname__", "").rpartition(".")[0]
        if scope and not scope.endswith(">"):  # such as the <locals> of a function
            raise InvalidOption(
                f"@rmq_spark.listener({topic!r}): {place} is in a class. Accepted: a function at "
                "the top of a module."
            )
        try:
            settings = ListenerSettings.parse(
                function,
                workers=workers,
                processes=processes,
                timeout=timeout,
                delay=delay,
                visibility_timeout=visibility_timeout,
            )
        except InvalidOption as error:
            raise InvalidOption(f"@rmq_spark.listener({topic!r}), {place}: {error}") from None
        marks: tuple[Marked, ...] = getattr(function, _MARKS, ())
        if any((one.topic, one.group) == (topic, of_group) for one in marks):
            raise InvalidOption(
                f"@rmq_spark.listener({topic!r}): {place} is marked already for this topic, group "
                f"{group_text(of_group)}. Remove one of the marks."
            )
        try:
            setattr(function, _MARKS, (*marks, Marked(topic, of_group, settings)))
        except AttributeError:
            raise InvalidOption(
                f"@rmq_spark.listener({topic!r}): {place} cannot be marked. Accepted: a function "
                "that is written in Python."
            ) from None
        return function

    return mark


def run(
    *functions: Callable[..., Any] | ModuleType,
    name: str,
    broker: Broker | None = None,
    workers: int | None = None,
    zookeeper: ZooKeeper | None = None,
    grace: Duration = DEFAULT_GRACE,
) -> None:
    """Run functions that ``listener`` has marked, until SIGTERM or SIGINT.

    ::

        rmq_spark.run(shop.billing, shop.mails.welcome, name="shop-1")

    functions: marked functions, and modules, which stand for all marked functions among their
    names. name: as for Broker.listen; all of them use it. broker: where the topics are; by default,
    that of ``connect()``. workers: the most messages in work at the same time, all functions
    together; by default, as many as each function has. zookeeper: as for Broker.listen. grace: as
    for Listener.run. If one function's listener ends by an error, the others stop, and it is
    raised. Raises InvalidOption for a function that is not marked, and for two functions of the
    same topic and group, and what Broker.listen and Listener.run raise.
    """
    marked = marked_in(functions)
    if workers is not None:
        check_amount("workers", workers)
    with ExitStack() as stack:
        used = broker or stack.enter_context(connect())
        Service.open(used, name, marked, workers=workers, zookeeper=zookeeper).run(grace=grace)


def marked_in(functions: Iterable[Callable[..., Any] | ModuleType]) -> list[Marked]:
    """Return what is marked: of functions, and of all that modules name. Raises InvalidOption."""
    found: dict[tuple[str, str], Marked] = {}
    for marked in (marked for given in functions for marked in _marked(given)):
        first = found.setdefault((marked.topic, marked.group), marked)
        if first != marked:
            raise InvalidOption(
                f"Two functions are marked for topic {marked.topic}, group "
                f"{group_text(marked.group)}: {place_of(first.settings.function)} and "
                f"{place_of(marked.settings.function)}. A group has one function for a topic. Give "
                "one of them another group."
            )
    if not found:
        raise InvalidOption("No function is given. Accepted: marked functions, and modules.")
    return list(found.values())


def _marked(given: Callable[..., Any] | ModuleType) -> Iterator[Marked]:
    is_module = isinstance(given, ModuleType)
    if not (is_module or callable(given)):
        raise InvalidOption(
            f"{given!r} is a {type(given).__name__}. Accepted: marked functions and modules, each "
            "an argument of its own."
        )
    candidates = list(vars(given).values()) if is_module else [given]
    marks = [mark for one in candidates for mark in _marks_of(one)]
    if not marks:
        which = f"The module {given.__name__} has" if is_module else f"{place_of(given)} is"
        what = "no function that is marked" if is_module else "not marked"
        raise InvalidOption(
            f'{which} {what} with @rmq_spark.listener. Write @rmq_spark.listener("Orders") above '
            "a function to have it called for the messages of topic Orders."
        )
    yield from marks


def _marks_of(found: object) -> Iterator[Marked]:
    """Yield the marks of a function; of one that wraps a marked function, with itself in it."""
    if callable(found):
        for mark in getattr(found, "__dict__", {}).get(_MARKS, ()):
            yield replace(mark, settings=replace(mark.settings, function=found))


class Service:
    """Listeners that run, stop and fail together, in one process."""

    scheduler: Scheduler | None = None  # that works beside the listeners

    def __init__(self, listeners: Sequence[Listener], workers: int | None = None) -> None:
        """workers: the most messages in work at the same time, if that is less than the sum."""
        self.listeners = listeners
        self.workers = workers or sum(one.workers for one in listeners)
        self._errors: list[BaseException] = []
        self._has_run = False

    @classmethod
    def open(
        cls,
        broker: Broker,
        name: str,
        marked: Iterable[Marked],
        *,
        workers: int | None = None,
        zookeeper: ZooKeeper | None = None,
    ) -> "Service":
        """Open the listeners of marked functions, which take nothing yet."""
        budget = None if workers is None else threading.Semaphore(workers)
        ensemble = parse_zookeeper(zookeeper)
        listeners = []
        for one in marked:
            most = min(one.settings.workers, workers or one.settings.workers)
            settings = replace(one.settings, workers=most, budget=budget, ensemble=ensemble)
            open_queue = partial(broker.queue, one.topic, group=one.group)
            try:
                listeners.append(Listener(open_queue, name, settings))
            except (InvalidOption, UnknownTopic) as error:
                raise type(error)(f"{place_of(settings.function)}: {error}") from None
        return cls(listeners, workers)

    def run(self, *, grace: Duration = DEFAULT_GRACE) -> None:
        """Run the listeners until ``stop``, a signal, or the end of one of them. See ``run``."""
        if self._has_run:
            raise ConsumerMisused("This service has run. Make another one.")
        self._has_run = True
        begun: list[threading.Thread] = []
        with stopped_by_signals(lambda _: self.stop(grace)):
            try:
                for one in self.listeners:
                    thread = threading.Thread(target=self._run, args=(one, grace))
                    thread.start()
                    begun.append(thread)
            except BaseException:
                self.stop(grace)
                raise
            finally:
                for thread in begun:
                    while thread.is_alive():
                        thread.join(HEARD_WITHIN_S)
        if self._errors:
            raise self._errors[0]

    def _run(self, one: Listener, grace: Duration) -> None:
        try:
            one.run(grace=grace)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self.stop(grace)

    def stop(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Let ``run`` take nothing more, finish running calls, and return. See Listener.stop."""
        for one in self.listeners:
            one.stop(grace)

    def why_not_ready(self) -> str:
        """Return why some listener does not take messages now, or an empty text."""
        found = self._first("waits for Redis", lambda one: one.is_running and not one.is_ready)
        found = found or self._first("does not take messages", lambda one: not one.is_running)
        return found or self._why_no_scheduler()

    def why_stuck(self) -> str:
        """Return who hangs or has ended by an error, or an empty text."""
        found = self._first("hangs or has ended by an error", lambda one: one.is_stuck)
        return found or self._why_no_scheduler()

    def _why_no_scheduler(self) -> str:
        has_ended = self.scheduler is not None and self.scheduler.error is not None
        return "The scheduler has ended by an error." if has_ended else ""

    def _first(self, what: str, is_so: Callable[[Listener], bool]) -> str:
        found = (one for one in self.listeners if is_so(one))
        return "".join(f"The listener {one} {what}." for one in islice(found, 1))
