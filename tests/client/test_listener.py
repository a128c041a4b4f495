"""A listener: a function is called for every message, in threads."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial

import pytest
import redis

from rmq_spark.client import Message, connect
from rmq_spark.client.receiving import callers, dispatcher, own_loop, slot_claims, waits
from rmq_spark.client.receiving import listener as listener_module
from rmq_spark.client.receiving import workers as workers_module
from rmq_spark.client.receiving.callers import in_process_caller
from rmq_spark.client.receiving.slot_claims import SlotWork
from rmq_spark.errors import (
    ConsumerMisused,
    ExclusiveSlot,
    Fenced,
    InvalidOption,
    RmqError,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.claims import Claim, Delivered

from ..logs import logged
from ..not_saving import not_saving
from ..seeding import LONG_MS, numbered
from ..waiting import is_drained, wait_until

SLOTS = 4


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", SLOTS, max_retries=3)
    return broker.queue("T")


@pytest.fixture
def seen():
    return []


def remember(seen):
    def function(message):
        seen.append(message.content)

    return function


def send(topic, contents, **values):
    topic.send(contents, fixed_time=1000, **values)


def test_before_it_runs_its_counts_are_zero(broker, topic):
    listener = broker.listen("T", "a", print)
    assert (listener.succeeded, listener.failed, listener.snoozed, listener.left_alone) == (0,) * 4
    assert (listener.at_work, sum(listener.timings().durations.counts)) == (0, 0)


def test_every_message_is_given_to_the_function_once(broker, topic, seen):
    send(topic, numbered(1000))
    with broker.listen("T", "a", remember(seen)) as listener:
        send(topic, numbered(1000, start=1000))
        wait_until(lambda: len(seen) >= 2000 and is_drained(topic), "all messages")
    assert sorted(seen) == numbered(2000)
    assert (listener.succeeded, listener.failed, listener.left_alone) == (2000, 0, 0)
    assert topic.figures().counters["committed"] == 2000


def test_messages_of_one_slot_come_one_after_another_in_order(broker, topic, monkeypatch):
    monkeypatch.setattr(slot_claims, "LARGEST_CLAIM", 3)
    at_work, overlaps, order = set(), [], {}

    def function(message):
        if message.slot in at_work:
            overlaps.append(message.content)
        at_work.add(message.slot)
        time.sleep(0.002)
        order.setdefault(message.slot, []).append(message.content)
        at_work.discard(message.slot)

    for number, content in enumerate(numbered(100)):
        topic.send([content], fixed_time=1000 + number)
    with broker.listen("T", "a", function, workers=8):
        wait_until(lambda: is_drained(topic), "all messages")
    assert overlaps == []
    assert all(contents == sorted(contents) for contents in order.values())
    assert sum(map(len, order.values())) == 100


def test_slots_are_worked_on_beside_each_other(broker, topic):
    """Each call waits until all slots are in progress."""
    together = threading.Barrier(SLOTS, timeout=60)
    for slot in range(SLOTS):
        content = next(c for c in numbered(999) if topic.definition.slot_of(c) == slot)
        send(topic, [content])
    with broker.listen("T", "a", lambda _: together.wait(), workers=SLOTS) as listener:
        wait_until(lambda: listener.succeeded == SLOTS, "all slots")


def test_a_function_that_raises_rolls_its_message_back_alone(broker, topic, seen, caplog):
    def function(message):
        seen.append(message.content)
        if message.content == b"m00003":
            raise ValueError("not this one")

    send(topic, numbered(10))
    with broker.listen("T", "a", function) as listener:
        wait_until(lambda: is_drained(topic), "all messages")
    assert sorted(seen) == sorted(numbered(10) + 3 * [b"m00003"])
    assert (listener.succeeded, listener.failed) == (9, 4)
    (page,) = (page for slot in topic.slots for page in topic.pages("dead", slot) if page.contents)
    assert page.contents == [b"m00003"]
    assert page.deaths[0].reason.startswith("ValueError: not this one (test_listener.py:")
    assert "ValueError: not this one" in logged(caplog)


def test_a_reason_names_the_line_of_the_function_not_of_the_library_behind_it(broker, topic):
    """Failed before: it named decoder.py, which is Python's."""
    send(topic, [b"no JSON"])
    broker.alter("T", max_retries=0)
    with broker.listen("T", "a", lambda message: json.loads(message.content)):
        wait_until(lambda: is_drained(topic), "the message")
    (page,) = (page for slot in topic.slots for page in topic.pages("dead", slot) if page.contents)
    assert re.fullmatch(
        r"JSONDecodeError: Expecting value: line 1 column 1 \(char 0\) \(test_listener.py:\d+\)",
        page.deaths[0].reason,
    )


def test_a_reason_without_a_line_of_ones_own_names_what_raised(broker, topic):
    send(topic, [b"no JSON"])
    broker.alter("T", max_retries=0)
    with broker.listen("T", "a", json.loads):  # a Message is no text
        wait_until(lambda: is_drained(topic), "the message")
    (page,) = (page for slot in topic.slots for page in topic.pages("dead", slot) if page.contents)
    assert "TypeError: the JSON object must be str" in page.deaths[0].reason
    assert "(__init__.py:" in page.deaths[0].reason


class UnreadableError(BaseException):
    """An error whose text ends whoever asks for it."""

    def __str__(self):
        raise SystemExit(1)


class NamelessType(type):
    @property
    def __name__(cls):
        raise ValueError("nameless")


class NamelessError(BaseException, metaclass=NamelessType):
    pass


RAISED = [
    GeneratorExit("x"),
    KeyboardInterrupt("x"),
    BaseExceptionGroup("x", [SystemExit(1)]),
    asyncio.CancelledError("x"),
    UnreadableError(),
    NamelessError("x"),
]
FORMS = ["thread", "coroutine", "loop"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type.__repr__(type(error))[8:-2])
def test_whatever_a_function_raises_costs_its_message_alone(broker, form, raised):
    """Failed before with a loop: the listener ended, and what had succeeded before died."""
    if form == "loop" and isinstance(raised, KeyboardInterrupt):
        pytest.skip("In an event loop, a KeyboardInterrupt ends the loop.")
    broker.create("T", "FixedTime", 1, max_retries=0)
    topic = broker.queue("T")
    topic.send(numbered(20), fixed_time=1000)

    def function(message):
        if message.content == b"m00005":
            raise raised

    async def coroutine(message):
        function(message)

    with ExitStack() as stack:
        how = {"loop": stack.enter_context(running_loop())} if form == "loop" else {}
        of_form = function if form == "thread" else coroutine
        with broker.listen("T", "a", of_form, workers=1, **how) as listener:
            wait_until(lambda: listener.succeeded + listener.failed == 20, "all messages")
            assert listener.is_running
    assert (listener.succeeded, listener.failed) == (19, 1)
    counters = topic.figures().counters
    assert (counters["committed"], counters["dead"]) == (19, 1)


def test_what_succeeded_before_its_loop_ended_is_committed(broker):
    broker.create("T", "FixedTime", 1, max_retries=0)
    topic = broker.queue("T")
    topic.send(numbered(20), fixed_time=1000)
    with running_loop() as loop:

        async def function(message):
            if message.content == b"m00005":
                loop.stop()
                await asyncio.sleep(1000)

        with (
            pytest.raises(ConsumerMisused, match="has ended"),
            broker.listen("T", "a", function, workers=1, loop=loop) as listener,
        ):
            wait_until(lambda: not listener.is_running, "the end of the listener")
    counters = topic.figures().counters
    assert (counters["committed"], counters["dead"]) == (5, 1)
    assert topic.figures().store.count == 14


def test_a_call_that_a_closed_loop_never_began_is_no_warning(recwarn):
    """Failed before: "coroutine 'LoopCaller._run' was never awaited" when a program ended."""
    loop = asyncio.new_event_loop()
    caller = callers.LoopCaller(print, "default", loop, None)
    closer = threading.Thread(
        target=lambda: (wait_until(lambda: caller._in_work, "the call"), loop.close())
    )
    closer.start()
    with pytest.raises(ConsumerMisused, match="has ended"):
        caller.call(None)
    closer.join()
    gc.collect()
    assert [str(one.message) for one in recwarn if "awaited" in str(one.message)] == []


@contextmanager
def running_loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_a_function_that_exits_has_failed_and_its_slot_goes_on(broker, topic, seen):
    def function(message):
        if message.content == b"m00000":
            raise SystemExit(1)
        seen.append(message.content)

    topic.send(numbered(2), fixed_time=1000, slot_basis=b"one")
    with broker.listen("T", "a", function, delay="1h") as listener:
        wait_until(lambda: listener.failed == listener.succeeded == 1, "both messages")
        topic.send([b"next"], fixed_time=1000, slot_basis=b"one")
        wait_until(lambda: b"next" in seen, "the next message")


def test_two_listeners_share_the_messages(broker, topic, seen, caplog):
    with (
        broker.listen("T", "a", remember(seen)) as one,
        broker.listen("T", "b", remember(seen)) as other,
    ):
        for number in range(20):
            send(topic, numbered(100, start=100 * number))
        wait_until(lambda: one.succeeded + other.succeeded == 2000, "all messages")
    assert sorted(seen) == numbered(2000)
    assert "lost a claim" not in logged(caplog)


def test_a_message_that_another_works_on_is_asked_for_now_and_then(broker, topic, seen):
    """It was sent again, and nobody can take the copy before the first one is done."""
    send(topic, [b"m"])
    with broker.consumer("T", "other", visibility_timeout="1h") as other:
        batch = other.poll()
        send(topic, [b"m"])
        with broker.listen("T", "a", remember(seen)) as listener:
            wait_until(lambda: listener._dispatcher, "it runs")
            claims = lambda: next(listener._dispatcher.workers._slot_claims._numbers)  # noqa: E731
            first = claims()
            wait_until(lambda: claims() > first + 5, "a few claims")
            began, before = time.monotonic(), claims()
            time.sleep(1)
            tried, took = claims() - before - 2, time.monotonic() - began
            assert tried <= took / workers_module._NOTHING_TAKEN_S + 2
            assert seen == []
            batch.commit()
            wait_until(lambda: seen == [b"m"], "the copy")


def test_a_keyed_topic_and_its_groups(broker, seen):
    broker.create("K", "FixedTime", 2, keyed=True, groups=["audit"])
    with broker.listen("K", "a", seen.append, group="audit"):
        broker.queue("K").send(
            [Message(b"payload", key=b"k", headers={"h": b"1"}, fixed_time=1000)]
        )
        wait_until(lambda: seen, "the message")
    (message,) = seen
    assert (message.key, message.content, message.headers) == (b"k", b"payload", (("h", b"1"),))


def test_a_delay_holds_a_failed_message_back(broker, topic):
    def function(message):
        raise ValueError

    send(topic, [b"m"])
    with broker.listen("T", "a", function, delay="1h") as listener:
        wait_until(lambda: listener.failed == 1 and not topic.figures().prepare.count, "a failure")
    waiting = topic.figures().retry
    assert waiting.count == 1
    assert waiting.oldest_ms > topic.now_ms() + LONG_MS - 60_000


def test_a_coroutine_function_runs_in_an_event_loop(broker, topic, seen):
    async def function(message):
        await asyncio.sleep(0)
        seen.append(message.content)

    send(topic, numbered(50))
    with broker.listen("T", "a", function):
        wait_until(lambda: is_drained(topic), "all messages")
    assert sorted(seen) == numbered(50)


def test_what_async_functions_share_belongs_to_the_event_loop_of_all_of_them(broker, seen):
    """Failed before: each worker had a loop, so a shared client or lock failed for most calls."""
    one_at_a_time = asyncio.Lock()

    async def function(message):
        async with one_at_a_time:
            await asyncio.sleep(0.001)
            seen.append(message.content)

    for round_ in range(2):  # also that of a later listener
        with ExitStack() as stack:
            for name in ("T", "U"):
                broker.create(name, "FixedTime", 8)
                broker.queue(name).send(numbered(50), fixed_time=1000)
                listener = stack.enter_context(broker.listen(name, "a", function))
            wait_until(lambda n=100 * round_ + 100: len(seen) >= n, "all messages")
            assert listener.failed == 0
    assert len(seen) == 200


IN_WORK = """
import asyncio, sys, threading, time
import rmq_spark

begun = threading.Semaphore(0)

async def function(message):
    begun.release()
    await asyncio.sleep(3600)

broker = rmq_spark.connect(sys.argv[1], key_prefix=sys.argv[2])
listener = broker.listen("T", "a", function, workers=2)
threading.Thread(target=listener.run, daemon=True).start()
begun.acquire(); begun.acquire()
"""


def test_an_end_of_the_process_costs_calls_in_work_no_more_than_a_kill(broker, redis_url):
    """Seen: their tasks were cancelled, so they failed, and died."""
    broker.create("T", "FixedTime", 4, max_retries=0)
    topic = broker.queue("T")
    topic.send(numbered(20), fixed_time=1000)
    done = subprocess.run(
        [sys.executable, "-c", IN_WORK, redis_url, broker.key_prefix],
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, b"Task" in done.stderr) == (0, b"", False)
    figures = topic.figures()
    assert (figures.prepare.count, figures.dead.count) == (2, 0)


def test_the_log_has_the_traceback_of_each_failure_at_debug(broker, topic, caplog):
    caplog.set_level(logging.DEBUG, "rmq_spark")

    def function(message):
        {}["deep"]

    topic.send([b"secret"], fixed_time=1000)
    with broker.listen("T", "a", function, delay="1h") as listener:
        wait_until(lambda: listener.failed, "a failure")
    raised = "message b'secret': the function raised"
    (record,) = [one for one in caplog.records if raised in one.getMessage()]
    assert record.exc_info[0] is KeyError
    assert "secret" not in "".join(
        one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG
    )
    assert "rmq: the listener a of T, group default has ended" in caplog.text


def test_while_an_async_function_blocks_its_event_loop_no_other_call_begins(
    broker, topic, seen, monkeypatch
):
    monkeypatch.setattr(callers, "_CANCELLED_S", 0.1)
    monkeypatch.setattr(callers, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(callers, "BLOCKED_AFTER_S", 0.7)
    released = threading.Event()

    async def function(message):
        seen.append((message.content, message.delivery_count))
        if message.content == b"blocks" and message.delivery_count == 1:
            released.wait(60)

    topic.send([b"blocks"], fixed_time=1000, slot_basis=b"one")
    topic.send(numbered(5), fixed_time=2000, slot_basis=b"one")
    with broker.listen("T", "a", function, workers=4, timeout="1s") as listener:
        wait_until(lambda: listener.failed, "the end of its time")
        send(topic, numbered(20, start=5))
        assert not listener.is_stuck
        monkeypatch.setattr(listener_module, "_STUCK_AFTER_S", 0.1)
        assert listener.is_stuck
        monkeypatch.undo()
        assert seen == [(b"blocks", 1)]
        released.set()
        wait_until(lambda: is_drained(topic), "all messages")
    assert sorted(seen) == sorted([(b"blocks", 1), (b"blocks", 2), *((n, 1) for n in numbered(25))])
    assert (listener.succeeded, listener.failed) == (26, 1)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_task_of_an_async_function_does_not_end_the_event_loop(broker, topic, raised):
    async def leave():
        raise raised

    async def function(message):
        left = asyncio.get_running_loop().create_task(leave())
        with contextlib.suppress(raised):
            await left

    send(topic, numbered(20))
    with broker.listen("T", "a", function) as listener:
        wait_until(lambda: is_drained(topic), "all messages")
    assert (listener.succeeded, listener.failed) == (20, 0)


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_what_a_call_sets_in_its_context_is_not_there_for_the_next(broker, topic, seen, is_async):
    """Seen: a message was logged under the customer of the one before."""
    customer = ContextVar("customer", default=None)

    def function(message):
        seen.append(customer.get())
        customer.set(message.content)

    async def later(message):
        function(message)

    send(topic, numbered(3), slot_basis=b"one")
    with broker.listen("T", "a", later if is_async else function, workers=1):
        wait_until(lambda: is_drained(topic), "all messages")
    assert seen == [None] * 3


async def generate_later():
    yield


@pytest.mark.parametrize("returns", [lambda: asyncio.sleep(0), generate_later, Future])
def test_a_function_that_returns_what_has_not_run_has_failed(broker, topic, returns):
    send(topic, [b"m"])
    with broker.listen("T", "a", lambda message: returns(), delay="1h") as listener:
        wait_until(lambda: listener.failed == 1, "a failure")
    assert topic.figures().counters["committed"] == 0


def test_a_call_that_hangs_is_given_up_and_others_go_on(broker, topic, seen, monkeypatch):
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 3600.0)  # nothing is given back meanwhile
    monkeypatch.setattr(workers_module, "_LOOK_EVERY_S", 0.05)
    released = threading.Event()

    def function(message):
        if message.content == b"m00001" and message.delivery_count == 1:
            released.wait(60)
        seen.append((message.content, message.delivery_count))

    for number, content in enumerate(numbered(4)):
        topic.send([content], fixed_time=1000 + number, slot_basis=b"one")
    with broker.listen("T", "a", function, workers=1, timeout="1s") as listener:
        wait_until(lambda: is_drained(topic), "all messages")
        assert [content for content, _ in seen] == [b"m00000", b"m00002", b"m00003", b"m00001"]
        released.set()
        wait_until(lambda: (b"m00001", 1) in seen, "the end of the call that hung")
        send(topic, [b"last"])
        wait_until(lambda: (b"last", 1) in seen and is_drained(topic), "one more")
    assert (listener.succeeded, listener.failed) == (5, 1)


@pytest.mark.parametrize("swallows", [False, True])
def test_an_async_function_is_cancelled_when_its_time_is_over(
    broker, topic, seen, monkeypatch, caplog, swallows
):
    """Failed before: it went on beside the retry of its own message."""
    monkeypatch.setattr(workers_module, "_LOOK_EVERY_S", 0.05)
    ended = threading.Event()

    async def function(message):
        if message.content == b"long" and message.delivery_count == 1:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                seen.append("cancelled")
                if not swallows:
                    raise
            finally:
                ended.set()
        seen.append((message.content, message.delivery_count))

    topic.send([b"long"], fixed_time=1000, slot_basis=b"one")
    topic.send([b"next"], fixed_time=2000, slot_basis=b"one")
    with broker.listen("T", "a", function, workers=1, timeout="1s") as listener:
        assert ended.wait(60)
        wait_until(lambda: is_drained(topic), "all messages")
    calls = {(b"next", 1), (b"long", 2)} | ({(b"long", 1)} if swallows else set())
    wait_until(lambda: set(seen) == {"cancelled", *calls}, "all calls")
    assert (listener.succeeded, listener.failed) == (2, 1)
    assert topic.figures().counters["rolledBack"] == 1
    assert logged(caplog).count("rolled back") == 1
    assert "rolled back: TimeLimitExceeded: took longer than 1s" in logged(caplog)


def test_a_call_that_was_given_up_before_it_began_does_not_begin():
    async def function(message):
        pytest.fail("it began")

    caller = in_process_caller(function, "")
    caller.give_up()
    message = Delivered(b"m", "T", 0, 1000, None, 1, 3, "a:1:0:1", 1000)
    assert caller.call(message).reason.startswith("CancelledError")
    caller.give_up()


def test_leases_are_renewed_while_a_call_takes_long(broker, topic):
    done = threading.Event()

    def function(message):
        wait_until(lambda: topic.now_ms() > ends_ms, "three leases")
        done.set()

    send(topic, [b"m"])
    ends_ms = topic.now_ms() + 9000
    # Renewed each second: on a busy machine, that may be two seconds late.
    with broker.listen("T", "a", function, visibility_timeout="3s") as listener:
        while not done.is_set():
            assert topic.expire() == 0
            time.sleep(0.05)
        wait_until(lambda: is_drained(topic), "the commit")
    assert (listener.succeeded, topic.figures().counters["rolledBack"]) == (1, 0)


# -- the end


def test_a_stop_finishes_what_is_in_work_and_gives_back_the_rest_at_no_cost(broker, topic, seen):
    begun, may_end = threading.Event(), threading.Event()

    def function(message):
        begun.set()
        may_end.wait(60)
        seen.append(message.content)

    for number, content in enumerate(numbered(5)):
        topic.send([content], fixed_time=1000 + number, slot_basis=b"one")
    listener = broker.listen("T", "a", function)
    thread = threading.Thread(target=listener.run)
    thread.start()
    assert begun.wait(60)
    listener.stop()
    may_end.set()
    thread.join(60)
    assert not thread.is_alive()
    assert seen == [b"m00000"]
    with broker.consumer("T", "b") as other:
        rest = other.poll()
        assert [message.content for message in rest] == numbered(4, start=1)
        assert {message.delivery_count for message in rest} == {1}


@pytest.mark.parametrize("graces", [["10ms"], ["1h", 0]], ids=["one-stop", "a-second-stop"])
def test_a_stop_waits_no_longer_than_the_shortest_grace(broker, topic, caplog, graces):
    """Failed before: a second stop was ignored, and the first grace was waited for."""
    begun, may_end = threading.Event(), threading.Event()

    def function(message):
        begun.set()
        may_end.wait(300)

    send(topic, [b"m"])
    listener = broker.listen("T", "a", function)
    thread = threading.Thread(target=listener.run)
    thread.start()
    assert begun.wait(60)
    for grace in graces:
        listener.stop(grace=grace)
    thread.join(60)
    assert not thread.is_alive()
    assert topic.figures().store.count == 1
    assert "which costs each a retry: 1" in logged(caplog)
    may_end.set()


def test_a_log_handler_that_raises_ends_no_worker(broker, topic, seen):
    """Failed before: the worker was gone, and nothing was taken for ever."""

    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("stderr is closed")

    def function(message):
        seen.append(message.content)
        if message.content == b"m00000":
            raise ValueError

    log, broken = logging.getLogger("rmq_spark"), Broken()
    log.addHandler(broken)
    try:
        send(topic, numbered(10))
        with broker.listen("T", "a", function, workers=1, delay="1h") as listener:
            wait_until(lambda: listener.failed + listener.succeeded == 10, "all messages")
    finally:
        log.removeHandler(broken)
    assert (listener.succeeded, listener.failed) == (9, 1)


def test_a_listener_that_cannot_start_all_threads_leaves_none(broker, topic, monkeypatch):
    before, started, start = set(threading.enumerate()), [], threading.Thread.start

    def start_some(thread):
        if thread.name == "rmq-worker":
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        broker.listen("T", "a", print, workers=5).run()
    assert len(started) == 3
    wait_until(lambda: set(threading.enumerate()) <= before, "the end of all threads")


@pytest.mark.parametrize("retries", [0, 3])
def test_a_stop_that_does_not_wait_costs_only_the_message_in_work_a_retry(broker, retries):
    """Seen: without a retry, the messages died that were not begun, and those that were done."""
    broker.create("R", "FixedTime", 1, max_retries=retries)
    queue = broker.queue("R")
    queue.send(numbered(10), fixed_time=1000)
    begun, at_third, may_end = [], threading.Event(), threading.Event()

    def function(message):
        begun.append(message.content)
        if len(begun) == 3:
            at_third.set()
            may_end.wait(60)

    with broker.listen("R", "a", function, workers=1) as listener:
        assert at_third.wait(60)
        listener.stop(grace="10ms")
    may_end.set()
    figures = queue.figures()
    assert (figures.counters["committed"], figures.dead.count) == (2, 0 if retries else 1)
    assert set(figures.deaths) == (set() if retries else {"given back"})
    with broker.consumer("R", "b") as other:
        found = {message.content: message.delivery_count for message in other.poll()}
    assert found == dict.fromkeys(numbered(7, start=3), 1) | ({begun[2]: 2} if retries else {})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_the_main_thread(broker, topic, seen, number):
    before = signal.getsignal(number)
    send(topic, [b"m"])

    def function(message):
        seen.append(message.content)
        os.kill(os.getpid(), number)

    broker.listen("T", "a", function).run()
    assert seen == [b"m"]
    assert is_drained(topic)
    assert signal.getsignal(number) is before


def test_another_process_that_takes_the_name_ends_it(broker, topic, seen, caplog):
    listener = broker.listen("T", "a", remember(seen))
    errors = []

    def run():
        try:
            listener.run()
        except Fenced as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: listener._dispatcher, "it runs")
    broker.consumer("T", "a")
    send(topic, [b"m"])
    thread.join(60)
    assert errors
    assert seen == []
    assert "keeps its messages" not in logged(caplog)  # the other has them


def test_the_deletion_of_the_topic_ends_it(broker, topic, seen):
    listener = broker.listen("T", "a", remember(seen))

    def delete():
        wait_until(lambda: listener._dispatcher, "it runs")
        broker.delete("T")

    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises(UnknownTopic):
        listener.run()
    deleting.join()
    # Failed before: it barred late claims, and the bars stayed behind.
    assert not topic.server.client.exists(*map(topic.keys.consumers, topic.slots))


def test_a_block_in_its_block_is_refused_and_the_outer_one_goes_on(broker, topic, seen):
    """Failed before: the end of the inner block stopped it."""
    with broker.listen("T", "a", remember(seen)) as listener:
        with pytest.raises(ConsumerMisused, match="has run"):
            listener.__enter__()
        send(topic, [b"m"])
        wait_until(lambda: seen, "the message")


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_a_copy_that_the_function_forks_does_not_go_on(broker, topic, is_async):
    """Failed before: the copy worked on the messages behind, beside its original."""

    def function(message):
        if message.content == numbered(1)[0] and os.fork() == 0:
            raise SystemExit

    async def later(message):
        function(message)

    send(topic, numbered(10), slot_basis=b"one")
    with broker.listen("T", "a", later if is_async else function, workers=1) as listener:
        wait_until(lambda: is_drained(topic), "the end")
    assert (listener.succeeded, listener.failed) == (10, 0)
    assert topic.figures().counters["rolledBack"] == 0


def test_it_runs_once(broker, topic, seen):
    listener = broker.listen("T", "a", remember(seen))
    listener.stop()
    listener.run()
    with pytest.raises(ConsumerMisused, match="has run"):
        listener.run()


# -- bad input


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"function": "no"}, "listen got a str"),
        ({"function": lambda: (yield)}, "is a generator"),
        ({"workers": 0}, "workers=0"),
        ({"workers": "8"}, "workers='8'"),
        ({"timeout": "soon"}, "timeout='soon'"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": "367d"}, "timeout='367d' is not accepted. Accepted: 1ms to 366d"),
        ({"delay": "367d"}, "delay='367d' is too long"),
        ({"visibility_timeout": 10**400}, "visibility_timeout=1000.*Accepted: 1ms to 366d"),
        ({"delay": -1}, "delay=-1"),
        ({"visibility_timeout": "0s"}, "visibility_timeout='0s'"),
    ],
)
def test_what_is_refused(broker, topic, wrong, message):
    given = {"function": print, **wrong}
    with pytest.raises(InvalidOption, match=message):
        broker.listen("T", "a", **given)


def test_a_topic_that_is_missing_or_exclusive_is_refused(broker):
    with pytest.raises(UnknownTopic):
        broker.listen("T", "a", print)
    broker.create("E", "FixedTime", 1, exclusive=True)
    with pytest.raises(ExclusiveSlot):
        broker.listen("E", "a", print)


def test_a_name_that_is_not_accepted_is_refused(broker, topic):
    with pytest.raises(InvalidOption, match="consumer name"):
        broker.listen("T", "a b", print).run()


# -- the messages of one claim


def test_who_was_given_up_gets_no_further_message():
    claim = Claim("T", 0, "a", 1, 0, 1, [b"1", b"2"], [b"1", b"1"], 0, 16)
    work = SlotWork(claim, ["first", "2nd"], limit=2, asked_s=0.0, claimed_s=0.0)
    work.own("worker")
    assert work.begin("worker") == "first"
    assert work.give_up(60, "hangs") is None
    assert work.give_up(-1, "hangs") == "first"
    assert work.failed == ("first", "hangs")
    assert not work.end("worker")
    assert work.begin("worker") is None
    work.own("other")
    assert work.rest() == ["2nd"]
    assert work.begin("other") == "2nd"
    assert work.end("other")
    assert work.begin("other") is None
    assert work.rest() == []


# -- what an adversary found


def put(topic, slot, *contents, score=1000):
    """Store messages without a wake-up."""
    topic.server.client.zadd(topic.keys.store(slot), dict.fromkeys(contents, score))


def failing_once(monkeypatch, owner, method):
    """Let the first call of a method fail, as it does when Redis is away for long."""
    original, calls = getattr(owner, method), []

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise ServerUnavailable("away")
        return original(*arguments)

    monkeypatch.setattr(owner, method, fail_once)


def test_a_call_that_is_given_up_while_redis_is_away_loses_no_message(
    broker, topic, seen, monkeypatch
):
    monkeypatch.setattr(workers_module, "_LOOK_EVERY_S", 0.05)
    failing_once(monkeypatch, slot_claims.SlotClaims, "roll_back")
    released = threading.Event()

    def function(message):
        seen.append(message.content)
        if seen.count(b"hangs") == 1 and message.content == b"hangs":
            released.wait(60)

    topic.send([b"hangs"], fixed_time=1000, slot_basis=b"one")
    listener = broker.listen("T", "a", function, timeout="200ms", visibility_timeout="1s")
    with listener:
        wait_until(lambda: seen.count(b"hangs") == 2, "it comes again")
        released.set()
        wait_until(lambda: is_drained(topic), "the end")


def test_an_error_that_nobody_expects_after_a_call_was_given_up_ends_it(broker, topic, monkeypatch):
    """Failed before: the slot stayed with nobody, and the lease of its claim was renewed."""

    def fail(*_):
        raise ValueError("unforeseen")

    monkeypatch.setattr(slot_claims.SlotClaims, "roll_back", fail)
    released = threading.Event()
    send(topic, [b"hangs"])
    listener = broker.listen("T", "a", lambda _: released.wait(60), timeout="200ms")
    with pytest.raises(RmqError, match="has failed: ValueError: unforeseen"):
        listener.run()
    released.set()


def test_a_commit_that_fails_for_a_moment_is_repeated(broker, topic, seen, monkeypatch):
    """What is done must not come again because Redis was away."""
    failing_once(monkeypatch, slot_claims.SlotClaims, "commit")
    topic.send([b"done"], fixed_time=1000, slot_basis=b"one")
    with broker.listen("T", "a", remember(seen), workers=1, visibility_timeout="1s"):
        wait_until(lambda: topic.figures().counters["committed"] == 1, "the commit")
    assert seen == [b"done"]


def test_a_call_waits_for_a_thread_if_the_system_has_no_more(broker, topic, monkeypatch):
    """Seen: the call failed, although others of its threads went on."""
    start, refused = threading.Thread.start, []

    def start_one(thread):
        if thread.name == "rmq-thread" and begun.is_set():
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        go_on.wait()

    async def work(message):
        first = asyncio.create_task(asyncio.to_thread(wait))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        second = asyncio.create_task(asyncio.to_thread(int))
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(first, second) == [None, 0]

    monkeypatch.setattr(threading.Thread, "start", start_one)
    topic.send([b"one"], fixed_time=1000)
    with broker.listen("T", "a", work) as listener:
        wait_until(lambda: listener.succeeded == 1, "the message")
    assert len(refused) == 1


def test_threads_of_async_functions_have_a_limit_and_further_calls_wait(
    broker, topic, seen, monkeypatch
):
    """Seen: with a thread for each, a function that asks for thousands of them failed."""
    monkeypatch.setattr(own_loop, "_MOST_THREADS", 3)
    at_once, before = [], set(threading.enumerate())

    def threads():
        return {one for one in threading.enumerate() if one.name == "rmq-thread"} - before

    def note(number):
        at_once.append(len(threads()))
        return number

    async def work(message):
        seen.append(sum(await asyncio.gather(*(asyncio.to_thread(note, n) for n in range(100)))))
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    topic.send([b"one"], fixed_time=1000)
    with broker.listen("T", "a", work) as listener:
        wait_until(lambda: listener.succeeded == 1, "the message")
    assert (seen, len(at_once), max(at_once) <= 3) == ([4950], 100, True)
    wait_until(lambda: not threads(), "the end of the threads")


def test_an_object_whose_call_is_async_is_an_async_function(broker, topic, seen):
    """Failed before: each call failed, because its coroutine had not run."""

    class Billing:
        async def __call__(self, message):
            await asyncio.sleep(0)
            seen.append(message.content)

    topic.send([b"one"], fixed_time=1000)
    with broker.listen("T", "a", Billing()):
        wait_until(lambda: topic.figures().counters["committed"] == 1, "the commit")
    assert seen == [b"one"]


@pytest.mark.parametrize("refuses", ["replicaof 127.0.0.1 1", "config set min-replicas-to-write 1"])
def test_a_listener_is_not_ready_while_redis_takes_no_writes(own_redis, seen, refuses, monkeypatch):
    """Failed before: Redis answered reads, so the listener said that it was ready."""
    monkeypatch.setattr(dispatcher, "_LOOK_EVERY_S", 0.1)
    admin = redis.Redis.from_url(own_redis.url)
    with connect(own_redis.url, patience_s=0.5) as broker:
        broker.create("T", "FixedTime", 4)
        broker.queue("T").send(numbered(20), fixed_time=1000)
        go_on = threading.Event()

        def function(message):
            seen.append(message.content)
            go_on.wait()

        with broker.listen("T", "a", function) as listener:
            wait_until(lambda: seen, "a call")
            admin.execute_command(*refuses.split())
            go_on.set()
            refused = listener._dispatcher
            wait_until(lambda: not listener.is_ready and refused.is_away, "that it is refused")
            refreshed_s = refused._refreshed_s
            wait_until(lambda: refused._refreshed_s > refreshed_s + 1, "ten looks at the topic")
            assert not listener.is_ready
            admin.execute_command("replicaof", "no", "one")
            admin.execute_command("config", "set", "min-replicas-to-write", "0")
            wait_until(lambda: listener.is_ready, "that it is ready again")
            wait_until(lambda: len(seen) == 20, "all messages")
    admin.close()


def test_the_log_says_once_that_a_listener_waits(own_redis, monkeypatch, caplog):
    """Failed before: at every try, so several times a second with a short patience."""
    monkeypatch.setattr(dispatcher, "_LOOK_EVERY_S", 0.05)
    own_redis.settings["appendonly"] = "yes"
    own_redis.kill()
    own_redis.start()
    with connect(own_redis.url, patience_s=0.1) as broker:
        broker.create("T", "FixedTime", 4)
        with broker.listen("T", "a", print) as listener:
            own_redis.kill()
            tries = set()

            def is_refused_again():
                tries.add(listener._dispatcher._away)
                return len(tries - {None}) == 4

            wait_until(is_refused_again, "four tries")
            own_redis.start()
            wait_until(lambda: listener.is_ready, "that it is ready again")
    text = logged(caplog)
    assert (text.count("waits for Redis"), text.count("listener a of T, group default: Redis")) == (
        1,
        1,
    )


def note_and_wait(folder, message):
    """Note each call in a file, and wait for another file."""
    with (folder / message.content.decode()).open("a") as notes:
        notes.write("called\n")
    wait_until((folder / "go").exists, "the word to go on")


async def note_and_await(folder, message):
    await asyncio.to_thread(note_and_wait, folder, message)


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (note_and_wait, {}),
        (note_and_wait, {"processes": True}),
        (note_and_await, {}),
    ],
    ids=["threads", "processes", "asyncio"],
)
def test_what_is_done_while_redis_takes_no_writes_is_committed_after_the_repair(
    own_redis, tmp_path, caplog, function, how
):
    broker, admin = connect(own_redis.url, patience_s=0.5), redis.Redis.from_url(own_redis.url)
    broker.create("T", "FixedTime", SLOTS, max_retries=0)
    topic = broker.queue("T")
    topic.send(numbered(20), fixed_time=1000)
    calling = partial(function, tmp_path)
    with broker.listen("T", "a", calling, workers=2, **how) as listener, caplog.at_level("WARNING"):
        wait_until(lambda: any(tmp_path.iterdir()), "the first call")
        with not_saving(admin):
            (tmp_path / "go").touch()
            wait_until(lambda: "cannot save its data" in caplog.text, "a commit that has to wait")
        wait_until(lambda: topic.figures().counters["committed"] == 20, "all commits")
        assert listener.is_running
    (tmp_path / "go").unlink()
    assert [file.name for file in tmp_path.iterdir() if file.read_text() != "called\n"] == []
    assert topic.figures().dead.count == 0
    broker.close()
    admin.close()


def test_a_slot_with_many_messages_does_not_starve_the_others(broker, topic, seen, monkeypatch):
    monkeypatch.setattr(slot_claims, "LARGEST_CLAIM", 10)
    put(topic, 0, *numbered(500))
    put(topic, 3, b"rare")
    with broker.listen("T", "a", remember(seen), workers=1):
        wait_until(lambda: len(seen) == 501, "all messages")
    assert seen.index(b"rare") <= 20


def test_slots_with_the_highest_priorities_are_worked_on_first(broker, seen, monkeypatch):
    """Failed before: a listener took slots in turn, whatever waited in them."""
    monkeypatch.setattr(slot_claims, "LARGEST_CLAIM", 1)
    broker.create("P", "Priority", slot_amount=8)
    calls = broker.queue("P")
    calls.send(Message(content, priority=100 + at) for at, content in enumerate(numbered(64)))
    with broker.listen("P", "a", lambda message: seen.append(message.priority), workers=1):
        wait_until(lambda: len(seen) == 64, "all messages")
    assert sum(seen[:32]) > sum(seen[32:])
    assert seen[0] == 163


def test_an_urgent_message_overtakes_what_a_slow_listener_has_claimed(broker, seen, monkeypatch):
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 0.0)  # every message takes longer
    broker.create("P", "Priority", slot_amount=1)
    calls = broker.queue("P")
    calls.send(numbered(200), priority=50)

    def function(message):
        seen.append((message.content, message.delivery_count))
        if len(seen) == 1:
            calls.send([b"urgent"], priority=900)

    with broker.listen("P", "a", function, workers=1):
        wait_until(lambda: len(seen) == 201 and is_drained(calls), "all messages")
    assert seen[1] == (b"urgent", 1)
    assert sorted(seen) == sorted((content, 1) for content in [*numbered(200), b"urgent"])


def test_quick_messages_of_a_slot_do_not_make_the_claims_of_a_slow_one_large(
    broker, topic, monkeypatch
):
    """Seen: claims of one and of many messages took turns there, and a retry never came."""
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 0.2)
    put(topic, 0, *numbered(5))
    asked = []
    claim = claiming.claim

    def noted(queues, requests, terms):
        asked.extend((request.slot, request.limit) for request in requests)
        return claim(queues, requests, terms)

    monkeypatch.setattr(claiming, "claim", noted)
    slow = []

    def function(message):
        if message.slot == 0:
            time.sleep(0.3)
            slow.append(message.content)
        elif len(slow) < 5:
            put(topic, 3, message.content + b"+")

    put(topic, 3, b"quick")
    with broker.listen("T", "a", function, workers=2):
        wait_until(lambda: len(slow) == 5, "the slow ones")
    of_slow = [limit for slot, limit in asked if slot == 0]
    assert set(of_slow[1:]) == {1}


def test_what_a_slow_listener_gives_back_keeps_its_time_and_order(broker, seen, monkeypatch):
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 0.0)
    broker.create("O", "FixedTime", slot_amount=1)
    sent = [(b"%02d" % (50 - number), 1000 + number) for number in range(50)]
    for content, due_ms in sent:  # the order of contents is another
        broker.queue("O").send([content], fixed_time=due_ms)
    with broker.listen("O", "a", lambda m: seen.append((m.content, m.due_time_ms)), workers=1):
        wait_until(lambda: len(seen) == 50, "all messages")
    assert seen == sent


def test_claims_of_a_slow_listener_become_small(broker, topic, seen, monkeypatch):
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 0.0)
    topic.send(numbered(200), fixed_time=1000, slot_basis=b"one")
    with broker.listen("T", "a", remember(seen), workers=1):
        wait_until(lambda: len(seen) == 200 and is_drained(topic), "all messages")
    counters = topic.figures().counters
    assert counters["committed"] == 200
    assert counters["claimed"] == 200 + 199  # the first claim takes all, each other one message


def test_claims_of_a_listener_that_is_fast_again_grow(broker, topic, seen, monkeypatch):
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    sizes = []
    take = slot_claims.SlotClaims.take

    def noted(claims, slot):
        work = take(claims, slot)
        sizes.append(len(work))
        return work

    monkeypatch.setattr(slot_claims.SlotClaims, "take", noted)
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 0.0)
    topic.send(numbered(1000), fixed_time=1000, slot_basis=b"one")

    def function(message):
        seen.append(message.content)
        if len(seen) == 20:
            monkeypatch.setattr(slot_claims, "_LONGEST_S", 3600.0)

    with broker.listen("T", "a", function, workers=1):
        wait_until(lambda: len(seen) == 1000 and is_drained(topic), "all messages")
    assert sizes[:2] == [256, 1]
    assert 256 in sizes[2:]


def test_a_message_without_a_wake_up_is_found_while_another_slot_is_busy(
    broker, topic, seen, monkeypatch
):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 0.2)
    with broker.listen("T", "a", remember(seen), workers=1) as listener:
        put(topic, 0, b"first")
        wait_until(lambda: b"first" in seen, "it listens")
        wait_until(lambda: listener._dispatcher._waiter._notifications.hears_all, "wake-ups")
        put(topic, 2, b"silent")

        def busy():
            topic.send([b"m%d" % len(seen)], fixed_time=1000, slot_basis=b"m00000")
            return b"silent" in seen

        wait_until(busy, "the silent message")


def test_a_paused_topic_with_a_retry_whose_wait_is_over_is_not_asked_without_a_pause(broker, topic):
    topic.server.client.zadd(topic.keys.retry(0), {b"m": 5_003})
    broker.alter("T", paused=True)
    (due, *_) = topic.ask(reading.due, [0], "a")
    assert (due.due, due.held, due.next_ms) == (0, 1, None)


def test_a_topic_that_is_created_again_with_other_slots_ends_it(broker, topic, seen):
    listener = broker.listen("T", "a", remember(seen))

    def create_again():
        wait_until(lambda: listener._dispatcher, "it runs")
        broker.delete("T")
        broker.create("T", "FixedTime", 2 * SLOTS)

    creating = threading.Thread(target=create_again)
    creating.start()
    with pytest.raises(UnknownTopic):
        listener.run()
    creating.join()


def test_a_pause_between_look_and_claim_is_no_lost_claim(broker, topic, seen, monkeypatch, caplog):
    take = slot_claims.SlotClaims.take

    def paused_first(self, slot):
        broker.alter("T", paused=True)
        return take(self, slot)

    monkeypatch.setattr(slot_claims.SlotClaims, "take", paused_first)
    send(topic, [b"m"])
    with broker.listen("T", "a", remember(seen)) as listener:
        wait_until(lambda: broker.definition("T").paused, "the pause")
        wait_until(lambda: listener._dispatcher and not listener.at_work, "the end of the claim")
    assert "lost a claim" not in logged(caplog)
    assert topic.figures().store.count == 1


def test_a_listener_that_cannot_begin_says_so_before_its_block(broker, topic):
    broker.delete("T")
    with pytest.raises(UnknownTopic):
        broker.listen("T", "a", print)
    broker.create("T", "FixedTime", SLOTS)
    listener = broker.listen("T", "a/b", print)
    with pytest.raises(InvalidOption, match="a/b"), listener:
        pytest.fail("the block began")
    assert not listener.is_running


def test_it_tells_whether_it_runs(broker, topic):
    with broker.listen("T", "a", print) as listener:
        assert listener.is_running
        broker.delete("T")
        wait_until(lambda: listener._error, "its end")
        assert not listener.is_running
        with pytest.raises(UnknownTopic):
            raise listener._error
        listener._error = None


@pytest.mark.parametrize("function", [lambda: None, lambda one, two: None, print, int])
def test_a_function_that_cannot_take_a_message_is_refused(broker, topic, function):
    if function in (print, int):
        broker.listen("T", "a", function)
        return
    with pytest.raises(InvalidOption, match="cannot be called with a message"):
        broker.listen("T", "a", function)
