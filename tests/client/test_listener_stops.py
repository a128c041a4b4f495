"""A listener whose grace ends while no function is in work: what has not failed costs nothing."""

import asyncio
import os
import signal
import threading

import pytest

from rmq_spark.client import connect
from rmq_spark.client.receiving import dispatcher, slot_claims
from rmq_spark.client.receiving.callers import ProcessCaller
from rmq_spark.client.receiving.slot_claims import SlotClaims
from rmq_spark.client.receiving.workers import Workers
from rmq_spark.errors import UnusableFunction
from rmq_spark.protocol import claiming, returning

from ..logs import logged
from ..seeding import numbered
from ..waiting import wait_until

claim, give_back = claiming.claim, returning.give_back


@pytest.fixture
def topic(broker):
    """Ten messages in one slot."""
    broker.create("T", "FixedTime", 1, max_retries=3)
    queue = broker.queue("T")
    queue.send(numbered(10), fixed_time=1000)
    return queue


class Held:
    """Holds the first call of a method until it is let go."""

    def __init__(self, monkeypatch, owner, method):
        self.begun, self.may_go_on, self.ended = (threading.Event() for _ in range(3))
        original = getattr(owner, method)

        def hold(*arguments):
            if self.begun.is_set():
                return original(*arguments)
            self.begun.set()
            self.may_go_on.wait(60)
            try:
                return original(*arguments)
            finally:
                self.ended.set()

        monkeypatch.setattr(owner, method, hold)

    def let_go(self):
        self.may_go_on.set()
        assert self.ended.wait(60)


def run_until(broker, function, event):
    """Run a listener until an event, and stop it without a grace."""
    with broker.listen("T", "a", function, workers=1) as listener:
        assert event.wait(60)
        listener.stop(0)
    return listener


def deliveries(broker):
    with broker.consumer("T", "b") as other:
        return {message.content: message.delivery_count for message in other.poll()}


def test_the_grace_ends_during_a_rollback(broker, topic, monkeypatch):
    """Failed before: all messages of the claim were charged, of which one had failed."""

    def function(message):
        raise ValueError("not this one")

    held = Held(monkeypatch, SlotClaims, "roll_back")
    listener = run_until(broker, function, held.begun)
    charged = {b"m00000": 2} | dict.fromkeys(numbered(9, start=1), 1)
    assert deliveries(broker) == charged
    held.let_go()
    wait_until(lambda: listener.failed, "the end of the worker's rollback")
    assert (listener.failed, listener.left_alone) == (1, 0)
    assert deliveries(broker) == {content: count + 1 for content, count in charged.items()}


def test_the_grace_ends_during_an_async_function(broker, topic):
    """Failed before: the function went on in a thread of its own, beside its message's retry."""
    begun, ended = threading.Event(), threading.Event()

    async def function(message):
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.set()
            raise

    listener = run_until(broker, function, begun)
    assert ended.wait(60)
    assert (listener.succeeded, listener.failed) == (0, 0)
    assert deliveries(broker) == {b"m00000": 2} | dict.fromkeys(numbered(9, start=1), 1)


def test_the_grace_ends_during_a_commit(broker, topic, monkeypatch):
    """Failed before: messages that were done were given back, and charged."""
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    held = Held(monkeypatch, SlotClaims, "commit")
    listener = run_until(broker, lambda message: None, held.begun)
    assert listener.succeeded == 10
    assert topic.figures().counters["committed"] == 10
    held.let_go()
    assert deliveries(broker) == {}


def test_the_grace_ends_before_the_answer_of_a_claim(broker, topic, monkeypatch):
    """Failed before: its messages were charged, and their function was never called."""
    claimed, may_answer, answered, seen = threading.Event(), threading.Event(), [], []

    def answer_late(queues, requests, terms):
        claims = yield from claim(queues, requests, terms)
        claimed.set()
        may_answer.wait(60)
        answered.extend(claims)
        return claims

    monkeypatch.setattr(claiming, "claim", answer_late)
    listener = run_until(broker, seen.append, claimed)
    monkeypatch.setattr(claiming, "claim", claim)
    assert deliveries(broker) == dict.fromkeys(numbered(10), 1)
    may_answer.set()
    wait_until(lambda: answered and not listener.at_work, "the end of the claim")
    assert deliveries(broker) == dict.fromkeys(numbered(10), 2)
    assert seen == []


def test_the_grace_ends_before_a_claim_arrives(broker, topic, monkeypatch):
    """Failed before: the block raised AlreadyCommitted, which is what the late claim gets."""
    asked, may_arrive, reported, seen = (*(threading.Event() for _ in range(3)), [])
    report = Workers._report

    def arrive_late(queues, requests, terms):
        asked.set()
        may_arrive.wait(60)
        return (yield from claim(queues, requests, terms))

    def arrive_behind(queues, slots, consumer, run, seq=0, **how):
        count = yield from give_back(queues, slots, consumer, run, seq, **how)
        if seq:  # the end, not the start
            may_arrive.set()
            reported.wait(60)
        return count

    def noted(workers, error):
        report(workers, error)
        reported.set()

    monkeypatch.setattr(claiming, "claim", arrive_late)
    monkeypatch.setattr(returning, "give_back", arrive_behind)
    monkeypatch.setattr(Workers, "_report", noted)
    run_until(broker, seen.append, asked)
    assert reported.is_set()
    assert deliveries(broker) == dict.fromkeys(numbered(10), 1)
    assert seen == []


def end_at_second(message):
    """End the process of its own at the second message."""
    if message.content == numbered(2)[1]:
        os._exit(3)


def listen_in_process(broker):
    return broker.listen("T", "a", end_at_second, processes=True, workers=1, delay="1h")


@pytest.fixture
def replaced(monkeypatch):
    """Holds the start of a process that replaces the first one."""
    held = Held(monkeypatch, ProcessCaller, "_start")
    held.begun.set()
    return held


def test_the_grace_ends_while_a_process_is_replaced(broker, topic, replaced):
    """Failed before: the message that the new process was for lost a retry without a call."""
    with listen_in_process(broker) as listener:
        replaced.begun.clear()
        assert replaced.begun.wait(60)
        listener.stop(0)
    replaced.let_go()
    assert deliveries(broker) == dict.fromkeys(numbered(8, start=2), 1)


def test_a_stop_while_a_process_is_replaced_begins_no_message(broker, topic, replaced):
    """Failed before: the next one was begun when the process was there, long after the stop."""
    with listen_in_process(broker) as listener:
        replaced.begun.clear()
        assert replaced.begun.wait(60)
        listener.stop("60s")
        assert listener._stopping.wait(60)
        replaced.let_go()
    assert (listener.succeeded, listener.failed) == (1, 1)
    assert deliveries(broker) == dict.fromkeys(numbered(8, start=2), 1)


def test_what_was_done_is_committed_if_no_process_can_be_started(broker, topic, monkeypatch):
    """Failed before: what had succeeded came again."""
    start, starts = ProcessCaller._start, []

    def fail_the_second(self):
        starts.append(self)
        if len(starts) == 2:
            raise UnusableFunction("no longer there")
        start(self)

    monkeypatch.setattr(ProcessCaller, "_start", fail_the_second)
    with pytest.raises(UnusableFunction, match="no longer there"):
        listen_in_process(broker).run()
    assert topic.figures().counters["committed"] == 1
    assert deliveries(broker) == dict.fromkeys(numbered(8, start=2), 1)


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_stop_waits_only_once_for_a_redis_that_hangs(own_redis, caplog, is_busy):
    """Failed before: three times, half a minute each, while a supervisor waits."""
    begun, go_on = threading.Event(), threading.Event()

    def work(message):
        begun.set()
        go_on.wait()

    with connect(own_redis.url, patience_s=1, socketTimeout="1s") as broker:
        broker.create("T", "FixedTime", 1)
        with broker.listen("T", "a", work) as listener:
            if is_busy:
                broker.queue("T").send([b"m"], fixed_time=1000)
                assert begun.wait(60)
            os.kill(own_redis.pid, signal.SIGSTOP)
            try:
                listener.stop(0)
            finally:
                wait_until(lambda: not listener._thread.is_alive(), "the end of the listener")
                os.kill(own_redis.pid, signal.SIGCONT)
        go_on.set()
    assert logged(caplog, own_redis.url).count("retrying Redis") == 1
    assert "keeps its messages until the lease ends" in logged(caplog)


def test_a_stop_gives_back_to_a_redis_that_has_answered_again(own_redis, caplog, monkeypatch):
    """Failed before: for 5 s after an outage, a stop left all to the end of the lease."""
    monkeypatch.setattr(dispatcher, "_AWAY_S", 3600)
    begun, go_on = threading.Event(), threading.Event()

    def work(message):
        begun.set()
        go_on.wait()

    with connect(own_redis.url, patience_s=1, socketTimeout="1s") as broker:
        broker.create("T", "FixedTime", 1)
        topic = broker.queue("T")
        with broker.listen("T", "a", work) as listener:
            os.kill(own_redis.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: listener._dispatcher.is_away, "that Redis is found to be away")
            finally:
                os.kill(own_redis.pid, signal.SIGCONT)
            topic.send([b"m"], fixed_time=1000)
            assert begun.wait(60)
            wait_until(
                lambda: listener._dispatcher._away_error() is None, "that Redis counts as back"
            )
            listener.stop(0)
        go_on.set()
        assert topic.figures().store.count == 1
    assert "until the lease ends" not in logged(caplog)
