"""A listener whose program is interrupted, by a Ctrl-C or by a signal of its own."""

import signal
import subprocess
import sys
import threading

import pytest

from rmq_spark.client.receiving import dispatcher
from rmq_spark.client.receiving.waits import Waiter


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 1)
    return broker.queue("T")


@pytest.fixture
def handled():
    """Handles signals while a test runs."""
    before = {}

    def handle(number, handler):
        before[number] = signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


def exit_program(*_):
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("handler", "error"),
    [(signal.default_int_handler, KeyboardInterrupt), (exit_program, SystemExit)],
)
def test_an_interrupt_while_a_block_begins_stops_it(
    broker, topic, monkeypatch, handled, handler, error
):
    """Failed before: it went on without its block, and the program did not end."""
    handled(signal.SIGINT, handler)
    interrupted = threading.Event()
    begin_run = dispatcher.begin_run

    def interrupt_first(*arguments):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        interrupted.wait(60)
        return begin_run(*arguments)

    monkeypatch.setattr(dispatcher, "begin_run", interrupt_first)
    topic.send([b"m"], fixed_time=1000)
    listener = broker.listen("T", "a", print)
    try:
        with pytest.raises(error), listener:
            pytest.fail("the block began")
        interrupted.set()
        assert listener._begun.wait(60)
        assert not listener.is_running
        listener._thread.join(60)
        assert not listener._thread.is_alive()
    finally:
        interrupted.set()
        listener.stop()
    assert topic.figures().counters["claimed"] == 0


def test_an_error_that_nobody_expects_is_not_hidden_by_a_block(broker, topic, monkeypatch):
    """Failed before: the block began and ran, without a listener."""

    def fail(*_):
        raise RuntimeError("nobody expects this")

    monkeypatch.setattr(dispatcher, "begin_run", fail)
    with pytest.raises(RuntimeError, match="nobody expects"), broker.listen("T", "a", print):
        pytest.fail("the block began")


def test_a_handler_may_stop_it_while_run_has_the_lock_of_its_event(
    broker, topic, monkeypatch, handled
):
    """Failed before: the handler waited for a lock of the thread that it had interrupted."""

    def give_up(*_):
        raise AssertionError("the handler of SIGUSR1 hangs")

    def stop(*_):
        listener.stop()
        running.append(listener.is_running)

    def interrupted(waiter, queue):
        if not running:
            with listener._stopping._cond:
                signal.raise_signal(signal.SIGUSR1)
        return look_if_time(waiter, queue)

    look_if_time, running = Waiter.look_if_time, []
    handled(signal.SIGALRM, give_up)
    handled(signal.SIGUSR1, stop)
    monkeypatch.setattr(Waiter, "look_if_time", interrupted)
    listener = broker.listen("T", "a", print)
    signal.alarm(60)
    try:
        listener.run()
    finally:
        signal.alarm(0)
    assert running == [False]


def test_a_handler_may_stop_it_while_the_program_stops_it(broker, topic, handled):
    """Failed before: the handler waited for a lock of the thread that it had interrupted."""

    def give_up(*_):
        raise AssertionError("the handler of SIGUSR1 hangs")

    handled(signal.SIGALRM, give_up)
    handled(signal.SIGUSR1, lambda *_: listener.stop())
    with broker.listen("T", "a", print) as listener:
        signal.alarm(60)
        try:
            with listener._stopping._cond:  # as if amid a call of stop
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.alarm(0)
        assert not listener.is_running


def test_a_program_may_stop_it_as_it_ends(own_redis, tmp_path):
    """Python 3.12 starts no thread then."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import atexit, threading
from rmq_spark.client import connect

broker = connect({own_redis.url!r})
broker.create("T", "FixedTime", 1)
broker.queue("T").send(["m"], fixed_time=1000)
begun = threading.Event()
listener = broker.listen("T", "a", lambda message: begun.set())
thread = threading.Thread(target=listener.run, daemon=True)

def end():
    listener.stop()
    thread.join(60)
    print(thread.is_alive(), broker.queue("T").figures().counters["committed"])

atexit.register(end)
thread.start()
begun.wait(60)
"""
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.stdout == "False 1\n", ended.stderr
