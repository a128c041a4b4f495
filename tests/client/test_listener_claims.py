"""Claims of a listener that Redis has made, but whose messages no function has got."""

import threading
import time

import pytest

from rmq_spark.client import connect
from rmq_spark.client.receiving import slot_claims
from rmq_spark.client.receiving.slot_claims import SlotClaims
from rmq_spark.errors import AlreadyCommitted, RmqError, ServerUnavailable, UnknownTopic
from rmq_spark.protocol import claiming, reading, sending

from ..logs import logged
from ..rounds.proxy import Proxy
from ..seeding import numbered
from ..waiting import wait_until

claim = claiming.claim


@pytest.fixture
def topic(broker):
    """A topic whose messages die at once if their delivery fails."""
    broker.create("T", "FixedTime", 1, max_retries=0)
    return broker.queue("T")


@pytest.mark.parametrize("losses", [1, 3])
def test_a_claim_whose_answer_is_lost_costs_no_retry(broker, topic, monkeypatch, losses):
    """Failed before: its lease ended, and its messages died; their function was never called."""
    lost, seen = [], []

    def lose_first(queues, requests, terms):
        claims = yield from claim(queues, requests, terms)
        if len(lost) < losses:
            lost.append(terms.seq)
            raise ServerUnavailable("The answer was lost.")
        return claims

    monkeypatch.setattr(claiming, "claim", lose_first)
    topic.send(numbered(5), fixed_time=1000)
    with broker.listen("T", "a", seen.append, workers=1, visibility_timeout="1s") as listener:
        wait_until(lambda: listener.succeeded + topic.figures().dead.count == 5, "all messages")
    assert [(message.content, message.delivery_count) for message in seen] == [
        (content, 1) for content in numbered(5)
    ]
    assert len(set(lost)) == losses


def test_a_claim_that_arrives_after_it_was_given_up_is_refused(broker, topic, monkeypatch):
    """Failed before: it took messages that nobody got, for the time of a lease."""
    late = []

    def late_first(queues, requests, terms):
        if not late:
            late.append((queues, requests, terms))
            other.poll()  # so that the listener finds nothing to claim any more
            raise ServerUnavailable("The claim is on its way.")
        return claim(queues, requests, terms)

    monkeypatch.setattr(claiming, "claim", late_first)
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "other") as other, broker.listen("T", "a", print):
        wait_until(lambda: late, "the claim")
        number = late[0][2].seq
        settled = lambda: topic.ask(reading.headers, "a")[0].settled  # noqa: E731
        wait_until(lambda: settled() >= number, "its end")
        with pytest.raises(AlreadyCommitted):
            topic.server.ask(claim(*late[0]))


def test_a_claim_that_others_gave_back_before_its_answer_ends_nothing(broker, monkeypatch, caplog):
    """Failed before: the listener ended with LeaseLost."""
    broker.create("U", "FixedTime", 1)
    queue, lost, seen = broker.queue("U"), [], []

    def lose_first(queues, requests, terms):
        if not lost:
            lost.append(terms.seq)
            yield from claim(queues, requests, terms)
            queue.ask(claiming.renew, [0], terms.consumer, terms.run, 0)
            assert queue.expire() == 1
        return (yield from claim(queues, requests, terms))

    monkeypatch.setattr(claiming, "claim", lose_first)
    queue.send([b"m"], fixed_time=1000)
    with broker.listen("U", "a", seen.append) as listener:
        wait_until(lambda: listener.succeeded or not listener.is_running, "the message")
    assert [(message.content, message.delivery_count) for message in seen] == [(b"m", 1)]
    assert "lost a claim of slot 0" in logged(caplog)


def test_the_first_claim_of_a_slot_is_as_small_as_that_of_others_has_to_be(broker, monkeypatch):
    """Failed before: of each slot, a second's work was done, and the rest of 256 given back."""
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    monkeypatch.setattr(slot_claims, "_LONGEST_S", 0.0)  # each message takes all the time
    broker.create("S", "FixedTime", 8)
    queue = broker.queue("S")
    pairs = [value for content in numbered(16) for value in (1000, content)]
    queue.ask(sending.send, dict.fromkeys(queue.slots, pairs))
    with broker.listen("S", "a", lambda message: None, workers=1) as listener:
        wait_until(lambda: listener.succeeded == 128, "all messages")
    counters = queue.figures().counters
    assert (counters["claimed"], counters["rolledBack"]) == (128 + 15, 15)


@pytest.mark.parametrize("takes_s", [0.0, 3600.0])
def test_a_listener_begins_with_claims_of_one_message(broker, topic, monkeypatch, takes_s):
    """Failed before: it held 256 of each slot at its start, and gave nearly all back."""
    monkeypatch.setattr(slot_claims, "_LONGEST_S", takes_s)
    topic.send(numbered(100), fixed_time=1000, slot_basis=b"one")
    with broker.listen("T", "a", lambda message: None, workers=1) as listener:
        wait_until(lambda: listener.succeeded == 100, "all messages")
    counters = topic.figures().counters
    assert (counters["claimed"], counters["rolledBack"]) == (100, 0)


def test_what_cannot_be_read_dies_in_the_end(broker, topic):
    """Failed once: the message came again at each start, lost no retry, and never died."""
    topic.send([b"m"], fixed_time=1000, headers={"name": b"1"})
    bodies = topic.keys.bodies(0)
    body = topic.server.command("HGET", bodies, "m")
    topic.server.command("HSET", bodies, "m", body.replace(b"name", b"n\xff\xfee"))
    topic.send([b"readable"], fixed_time=2000)
    starts = 0
    while not topic.figures().dead.count:
        starts += 1
        with (
            pytest.raises(RmqError, match="UnicodeDecodeError"),
            broker.listen("T", "a", print) as it,
        ):
            wait_until(lambda it=it: not it.is_running, "its end")
    assert starts == 3  # with another message, alone in its claim, and alone in its process
    assert topic.figures().dead.count == topic.figures().store.count == 1


def test_an_error_in_a_claim_costs_those_behind_it_no_retry(broker, topic, monkeypatch):
    """Failed before: the lease of the claim ended, and all of its messages died."""
    seen = []

    def function(message):
        seen.append((message.content, message.delivery_count))
        if message.content == b"m00000":
            raise ValueError("not this one")

    original, calls = SlotClaims.roll_back, []

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise ServerUnavailable("away")
        return original(*arguments)

    monkeypatch.setattr(SlotClaims, "roll_back", fail_once)
    topic.send(numbered(5), fixed_time=1000)
    with broker.listen("T", "a", function, workers=1, visibility_timeout="1s") as listener:
        wait_until(lambda: listener.succeeded + topic.figures().dead.count == 5, "all messages")
    assert seen == [(content, 1) for content in numbered(5)]


def test_a_lost_claim_is_logged_with_no_more_than_is_known(broker, topic, caplog):
    """Failed before: the log said that Redis had been away, which had only lost the topic."""
    topic.send([b"m"], fixed_time=1000)
    with (
        pytest.raises(UnknownTopic),
        broker.listen("T", "a", lambda message: broker.delete("T")) as listener,
    ):
        wait_until(lambda: not listener.is_running, "its end")
    assert "lost a claim of slot 0 before its commit: its lease (" in logged(caplog)
    assert "Unless the topic was deleted" in logged(caplog)


@pytest.mark.parametrize("seconds", [0.2, pytest.param(0.7, marks=pytest.mark.long)])
def test_a_stop_without_a_grace_over_a_slow_link_ends_it_in_order(own_redis, seconds):
    proxy = Proxy(own_redis.port)
    with (
        connect(own_redis.url) as near,
        connect(f"redis://127.0.0.1:{proxy.port}") as far,
    ):
        near.create("T", "FixedTime", 4, max_retries=3)
        near.queue("T").send(numbered(200), fixed_time=1000)
        seen = []
        proxy.delay_s = 0.1
        with far.listen("T", "a", seen.append, workers=4) as listener:
            time.sleep(seconds)  # into a claim, a rest that is given back, or a commit
            listener.stop(0)
        figures = near.queue("T").figures()
        assert figures.counters["committed"] == len(seen)
        assert (figures.store.count, figures.prepare.count) == (200 - len(seen), 0)
        with near.consumer("T", "b") as other:
            assert {message.delivery_count for message in other.poll()} <= {1}
    proxy.close()


@pytest.mark.long
def test_leases_of_many_slots_are_renewed_in_time_over_a_slow_link(own_redis, monkeypatch):
    """Failed before: one after another, which took longer than the lease, and others got them."""
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    proxy, go_on, begun = Proxy(own_redis.port), threading.Event(), []

    def work(message):
        begun.append(message)
        go_on.wait()

    with (
        connect(own_redis.url) as near,
        connect(f"redis://127.0.0.1:{proxy.port}") as far,
    ):
        near.create("T", "FixedTime", 64)
        queue = near.queue("T")
        queue.send(numbered(1000), fixed_time=1000)
        proxy.delay_s = 0.05
        with far.listen("T", "a", work, workers=64, visibility_timeout="3s") as listener:
            wait_until(lambda: len(begun) == 64, "all slots to be in progress")
            held = queue.figures().prepare.count
            with near.consumer("T", "b") as other:
                taken = len(other.poll(1000, wait="6s"))
            listener.stop(0)
            go_on.set()
        assert (taken, held) == (0, 1000)
    proxy.close()


def test_a_renewal_that_fails_as_nobody_expects_ends_it(broker, topic, monkeypatch):
    """Failed before: no lease was renewed any more, and nobody was told."""

    def fail(*_):
        raise RuntimeError("nobody expects this")

    def outlive(message):
        wait_until(lambda: not listener.is_running, "the end of the listener")

    monkeypatch.setattr(SlotClaims, "renew", fail)
    topic.send([b"m"], fixed_time=1000)
    listener = broker.listen("T", "a", outlive, visibility_timeout="1s")
    with pytest.raises(RmqError, match="A thread of the listener has failed: RuntimeError: nobody"):
        listener.run()
