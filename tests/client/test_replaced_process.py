"""A listener whose child process has ended, before another one is there and without."""

import os
import subprocess
import sys

import pytest

from rmq_spark.client.receiving.child_process import ProcessCaller
from rmq_spark.errors import UnusableFunction

from ..seeding import numbered
from .test_listener_stops import Held, deliveries

FIRST, SECOND, *_ = numbered(10)


@pytest.fixture
def topic(broker):
    """Ten messages in one slot."""
    broker.create("T", "FixedTime", 1, max_retries=3)
    queue = broker.queue("T")
    queue.send(numbered(10), fixed_time=1000)
    return queue


def end_at_second(message):
    if message.content == SECOND:
        os._exit(3)


def listen(broker):
    return broker.listen("T", "a", end_at_second, processes=True, workers=1, delay="1h")


def test_a_stop_meanwhile_begins_no_message(broker, topic, monkeypatch):
    """Failed before: the next one was begun when the process was there, long after the stop."""
    replaced = Held(monkeypatch, ProcessCaller, "_start")
    replaced.begun.set()  # not for the first process
    with listen(broker) as listener:
        replaced.begun.clear()
        assert replaced.begun.wait(60)
        listener.stop("60s")
        assert listener._stopping.wait(60)
        replaced.let_go()
    assert (listener.succeeded, listener.failed) == (1, 1)
    assert deliveries(broker) == dict.fromkeys(numbered(8, start=2), 1)


def test_what_was_done_is_committed_if_none_can_be_started(broker, topic, monkeypatch):
    """Failed before: what had succeeded came again."""
    start, starts = ProcessCaller._start, []

    def fail_the_second(self):
        starts.append(self)
        if len(starts) == 2:
            raise UnusableFunction("no longer there")
        start(self)

    monkeypatch.setattr(ProcessCaller, "_start", fail_the_second)
    with pytest.raises(UnusableFunction, match="no longer there"):
        listen(broker).run()
    assert topic.figures().counters["committed"] == 1
    assert deliveries(broker) == dict.fromkeys(numbered(8, start=2), 1)


def test_a_program_that_ends_starts_none(own_redis, tmp_path):
    """Failed before: it went on with new processes, for which it waited at its end."""
    (tmp_path / "endless.py").write_text("import time\ndef work(message): time.sleep(1000)\n")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import atexit, threading, time
from rmq_spark.client import connect
from endless import work

if __name__ == "__main__":
    broker = connect({own_redis.url!r})
    atexit.register(time.sleep, 2)  # as a library that writes its logs
    broker.create("T", "FixedTime", 1)
    broker.queue("T").send(["m", "n"], fixed_time=1000)
    listener = broker.listen("T", "a", work, processes=True, workers=1)
    threading.Thread(target=listener.run, daemon=True).start()
    while not listener.at_work:
        time.sleep(0.01)
"""
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
