"""A topic with a rate limit: its consumers and listeners together get no more than it allows."""

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
from redis import exceptions as redis_errors

from rmq_spark import aio
from rmq_spark.errors import LeaseLost, ServerUnavailable
from rmq_spark.protocol import claiming, returning
from rmq_spark.protocol.calls import Call
from rmq_spark.redis.server import Server

from ..seeding import numbered
from ..waiting import wait_until

HOURLY = {"rate": "1/h", "burst": 5}


@pytest.fixture
def limited(broker):
    def make(slots=4, **settings):
        broker.create("Calls", "FixedTime", slots, **settings)
        queue = broker.queue("Calls")
        queue.send(numbered(200), fixed_time=1000)
        return queue

    return make


def test_a_consumer_takes_no_more_than_the_limit_allows(broker, limited):
    limited(**HOURLY)
    with broker.consumer("Calls", "a") as consumer:
        batch = consumer.poll(100)
        assert len(batch) == 5
        batch.commit()
        assert len(consumer.poll(100)) == 0
        assert len(consumer.poll(100, wait="300ms")) == 0
    with broker.consumer("Calls", "b") as other:
        assert len(other.poll(100)) == 0, "the limit is that of all consumers together"


def test_permits_for_messages_that_were_not_there_are_not_lost(broker):
    broker.create("Calls", "FixedTime", 4, **HOURLY)
    queue = broker.queue("Calls")
    with broker.consumer("Calls", "a") as consumer:
        for sent in (1, 2, 2):
            queue.send(numbered(sent), fixed_time=1000)
            batch = consumer.poll(100)
            assert len(batch) == sent
            batch.commit()
        queue.send([b"more"], fixed_time=1000)
        assert len(consumer.poll(100)) == 0


@pytest.mark.parametrize("of_slot", [{}, {"rate_by": "slot"}], ids=["all", "slot"])
def test_permits_of_a_claim_that_fails_come_back(broker, limited, monkeypatch, of_slot):
    """Failed before: after an error, a group with a rate of 1/h waited for an hour."""
    limited(slots=1, **HOURLY, **of_slot)
    claim, failed = claiming.claim, []

    def fail_first(queues, requests, terms):
        if not failed:
            failed.append(terms.consumer)
            raise ServerUnavailable("The claim is lost.")
        return claim(queues, requests, terms)

    monkeypatch.setattr(claiming, "claim", fail_first)
    with broker.consumer("Calls", "a") as consumer:
        with pytest.raises(ServerUnavailable):
            consumer.poll(3)
        batch = consumer.poll(3)
        assert len(batch) == 3
        batch.commit()
    failed.clear()
    seen = []
    with broker.listen("Calls", "b", seen.append, workers=1):
        wait_until(lambda: len(seen) == 2, "the messages of the other permits")
    assert failed == ["b"]


@pytest.mark.parametrize("fails", [True, False])
def test_permits_that_cannot_be_returned_hide_nothing(broker, limited, monkeypatch, fails):
    limited(slots=1, **HOURLY)
    claim = claiming.claim

    def claim_and_cut(queues, requests, terms):
        monkeypatch.setattr(claiming, "grants", cut)
        if fails:
            raise LeaseLost("The claim is gone.")
        return claim(queues, [replace(one, limit=1) for one in requests], terms)

    def cut(queues, wanted):
        raise ServerUnavailable("Redis is away.")

    monkeypatch.setattr(claiming, "claim", claim_and_cut)
    with broker.consumer("Calls", "a") as consumer:
        if fails:
            with pytest.raises(LeaseLost):
                consumer.poll(2)
        else:
            assert len(consumer.poll(2)) == 1


def test_a_return_of_permits_whose_answer_is_lost_is_not_repeated(broker, limited, monkeypatch):
    """Failed before: the permits came back twice, and more than the burst was delivered."""
    limited(slots=1, **HOURLY)
    claim, send, lost = claiming.claim, Server._send, []

    def claim_one(queues, requests, terms):
        return claim(queues, [replace(one, limit=1) for one in requests], terms)

    def send_and_lose(self, calls):
        replies = send(self, calls)
        scripts = [call for call in calls if isinstance(call, Call)]
        if any(call.script == "grant" and call.args[0] < 0 for call in scripts):
            lost.append(True)
            raise redis_errors.ConnectionError
        return replies

    monkeypatch.setattr(claiming, "claim", claim_one)
    monkeypatch.setattr(Server, "_send", send_and_lose)
    with broker.consumer("Calls", "a") as consumer:
        batch = consumer.poll(3)
        assert (len(batch), lost) == (1, [True])
        batch.commit()
        monkeypatch.undo()
        assert len(consumer.poll(100)) == 4


def test_groups_do_not_share_a_limit(broker, limited):
    limited(groups="default,audit", **HOURLY)
    for group in ("default", "audit"):
        with broker.consumer("Calls", "a", group=group) as consumer:
            assert len(consumer.poll(100)) == 5


def test_each_slot_may_have_a_limit_of_its_own(broker, limited):
    queue = limited(slots=2, rate_by="slot", **HOURLY)
    with broker.consumer("Calls", "a") as consumer:
        batch = consumer.poll(100)
        assert Counter(message.slot for message in batch) == {0: 5, 1: 5}
        batch.commit()
        assert len(consumer.poll(100)) == 0
        assert sorted(map(ms_of_an_hour, waits(queue))) == [True, True]
        broker.alter("Calls", rate="none")
        assert len(consumer.poll(100)) == 100
    broker.delete("Calls")
    assert list(broker.server.client.scan_iter(match=f"{broker.key_prefix}rate_*")) == []


def test_what_a_slot_does_not_use_is_no_other_slots(broker):
    broker.create("Calls", "FixedTime", 2, rate_by="slot", **HOURLY)
    queue = broker.queue("Calls")
    in_slot_0 = [content for content in numbered(60) if queue.definition.slot_of(content) == 0]
    queue.send(in_slot_0[:8], fixed_time=1000)
    with broker.consumer("Calls", "a") as consumer, broker.consumer("Calls", "b") as other:
        assert len(consumer.poll(3)) == 3
        assert len(other.poll(100)) == 2
        assert len(consumer.poll(100)) == 0, "its first batch came back, its permits are used"


def waits(queue):
    """Of each slot: the ms until its limit allows a message again."""
    due, _ = queue.ask(returning.look, queue.slots, "a")
    return [slot.next_ms for slot in due]


def ms_of_an_hour(ms):
    return 3_500_000 < ms <= 3_600_000


def test_a_wait_ends_when_the_limit_allows_the_next_message(broker, limited):
    limited(rate="2/s", burst=1)
    with broker.consumer("Calls", "a") as consumer:
        for _ in range(3):
            batch = consumer.poll(100, wait="60s")
            assert len(batch) == 1
            batch.commit()


def test_a_limit_can_be_changed_and_taken_away_while_a_consumer_works(broker, limited):
    limited(**HOURLY)
    with broker.consumer("Calls", "a") as consumer:
        consumer.poll(100).commit()
        broker.alter("Calls", rate="none", burst="none")
        batch = wait_until(lambda: consumer.poll(100), "messages without a limit")
        assert len(batch) == 100


def test_listeners_together_keep_to_the_limit(broker, redis_url, limited):
    """Three in threads and one in an event loop, with messages enough for all of them."""
    queue = limited(slots=8, rate="100/s", burst=10)
    claimed, began_ms, done = [], queue.now_ms(), threading.Event()

    def note(message):
        claimed.append(message.claimed_at_ms)

    async def note_there(message):
        note(message)

    async def run_there():
        async with (
            await aio.connect(redis_url, key_prefix=broker.key_prefix) as there,
            there.listen("Calls", "there", note_there, workers=4),
        ):
            await asyncio.to_thread(done.wait)

    loop = threading.Thread(target=lambda: asyncio.run(run_there()))
    with ExitStack() as stack:
        for name in ("a", "b", "c"):
            stack.enter_context(broker.listen("Calls", name, note, workers=2))
        loop.start()
        try:
            wait_until(lambda: len(claimed) == 200, "all messages")
        finally:
            done.set()
            loop.join()
    for number, at_ms in enumerate(sorted(claimed), 1):
        assert number <= 10 + (at_ms - began_ms) / 10
    assert queue.figures().counters["committed"] == 200
