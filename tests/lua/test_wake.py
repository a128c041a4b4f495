"""Whom the scripts wake: who waits hears of a message that falls due before all others."""

import contextlib
import functools

import pytest

from rmq_spark.client import Message
from rmq_spark.protocol import claiming, returning, sending
from rmq_spark.topics.verdicts import Ending

from ..seeding import FAR_MS, LONG_MS, Slot, numbered, requeue
from .staged import NAME, Stages


class Listener:
    """Hears what is published for a store, as readers do."""

    def __init__(self, queue):
        self._pubsub = queue.server.client.pubsub()
        sharded = queue.server.version >= (7, 0)
        (self._pubsub.ssubscribe if sharded else self._pubsub.subscribe)(queue.keys.store(0))
        assert self._pubsub.get_message(timeout=30)["type"].endswith("subscribe")

    def heard(self):
        """The waits in ms of all wake-ups so far: behind them comes the answer to a ping."""
        self._pubsub.ping()
        waits = []
        while True:
            message = self._pubsub.get_message(timeout=30)
            if message["type"] == "pong":
                return waits
            waits.append(int(message["data"]))

    def close(self):
        self._pubsub.close()


@pytest.fixture
def listen():
    with contextlib.ExitStack() as all_of_them:

        def listening(queue):
            listener = Listener(queue)
            all_of_them.callback(listener.close)
            return listener

        yield listening


# -- senders


def test_a_message_wakes_if_it_is_due_before_all_others(slot, listen):
    listener = listen(slot.queue)
    slot.queue.send([b"later"], fixed_time=FAR_MS)
    (later,) = listener.heard()
    assert 0 <= FAR_MS - slot.now_ms() <= later
    slot.queue.send([b"latest"], fixed_time=FAR_MS + 1)
    assert listener.heard() == []
    slot.queue.send([b"sooner", b"latest of all"], fixed_time=FAR_MS - LONG_MS)
    (sooner,) = listener.heard()
    assert sooner <= later - LONG_MS
    slot.queue.send([b"now"], fixed_time=0)
    assert listener.heard() == [0]
    slot.queue.send([b"past"], fixed_time=1000)
    assert listener.heard() == [0]


def test_a_time_that_is_moved_forward_wakes_and_one_that_is_moved_back_does_not(slot, listen):
    slot.queue.send([b"m"], fixed_time=FAR_MS)
    slot.queue.send([b"other"], fixed_time=FAR_MS)
    listener = listen(slot.queue)
    slot.queue.send([b"m"], fixed_time=FAR_MS - 1)
    assert len(listener.heard()) == 1
    slot.queue.send([b"m"], fixed_time=FAR_MS + 1)
    assert listener.heard() == []


def test_of_several_delays_the_shortest_counts(slot, listen):
    listener = listen(slot.queue)
    delays = [3 * LONG_MS, LONG_MS, 2 * LONG_MS]
    slot.queue.send([Message(b"%d" % delay, delay=delay) for delay in delays])
    assert listener.heard() == [LONG_MS]
    slot.queue.send([b"m"], delay=LONG_MS // 2)
    assert listener.heard() == [LONG_MS // 2]
    slot.queue.send([b"n"], delay=LONG_MS // 2 + 1)
    assert listener.heard() == []


def test_a_time_and_a_delay_together(slot, listen):
    listener = listen(slot.queue)
    slot.queue.send([Message(b"a", delay=LONG_MS), Message(b"b", fixed_time=FAR_MS)])
    assert listener.heard() == [LONG_MS]
    slot.queue.send([Message(b"c", delay=LONG_MS), Message(b"d", fixed_time=1000)])
    assert listener.heard() == [0]


def test_of_several_time_ranges_the_shortest_counts(new_slot, listen):
    slot = new_slot("RangeMerge")
    listener = listen(slot.queue)
    ranges = [3 * LONG_MS, LONG_MS, 2 * LONG_MS]
    slot.queue.send([Message(b"%d" % each, time_range=each) for each in ranges])
    assert listener.heard() == [LONG_MS]
    slot.queue.send([b"m"], time_range=LONG_MS + 1)
    assert listener.heard() == []


def test_a_message_that_merges_wakes_nobody(new_slot, listen):
    slot = new_slot("RangeMerge")
    slot.queue.send([b"m"], time_range=LONG_MS)
    listener = listen(slot.queue)
    slot.queue.send([b"m"], time_range=1)
    assert listener.heard() == []


def test_a_priority_wakes_if_nothing_was_there(new_slot, listen):
    slot = new_slot("Priority")
    listener = listen(slot.queue)
    slot.queue.send([b"a", b"b"], priority=20)
    assert listener.heard() == [0]
    slot.queue.send([b"c"], priority=30)
    slot.queue.send([b"c"], priority=31)
    assert listener.heard() == []


def test_every_group_is_woken_by_itself(broker, listen):
    slot = Slot(broker, "T", groups="one, two", group="one")
    slot.queue.send([b"m"], fixed_time=FAR_MS)
    other = slot.queue.of_group("two")
    other.cancel([b"m"])
    first, second = listen(slot.queue), listen(other)
    slot.queue.send([b"later"], fixed_time=FAR_MS + 1)
    assert first.heard() == []
    assert len(second.heard()) == 1


@pytest.mark.parametrize(
    ("topic_type", "value", "wait"),
    [("RangeMerge", LONG_MS, LONG_MS), ("FixedTime", -LONG_MS, LONG_MS), ("Priority", 20, 0)],
)
def test_a_published_stage_wakes(new_slot, listen, topic_type, value, wait):
    slot = new_slot(topic_type)
    stages = Stages(slot)
    listener = listen(slot.queue)
    stages.put([b"m"], score=value)
    assert listener.heard() == []
    stages.publish({NAME: 1})
    assert listener.heard() == [wait]


# -- what comes back


def test_a_requeue_wakes(slot, listen):
    slot.bury(b"dead")
    listener = listen(slot.queue)
    requeue(slot.queue, 0, [b"other"], FAR_MS)
    assert listener.heard() == []
    requeue(slot.queue, 0, [b"dead"], FAR_MS)
    assert listener.heard() == [0]


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.UNCHARGED])
def test_a_rollback_wakes_when_its_first_message_may_come_again(slot, listen, ending):
    slot.put_due(numbered(3))
    slot.claim()
    listener = listen(slot.queue)
    slot.rollback(numbered(1), delay_ms=LONG_MS, ending=ending)
    assert listener.heard() == [LONG_MS]
    slot.rollback(numbered(2, start=1), ending=ending)
    assert listener.heard() == [0]


@pytest.mark.parametrize(("retries", "ending"), [(0, Ending.RETRY), (1, Ending.BURY)])
def test_a_message_that_dies_wakes_nobody(new_slot, listen, retries, ending):
    slot = new_slot(max_retries=retries)
    slot.put_due([b"m"])
    slot.claim()
    listener = listen(slot.queue)
    slot.rollback([b"m"], ending=ending)
    assert slot.dead
    assert listener.heard() == []


def test_claims_that_are_given_back_wake(slot, listen):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    listener = listen(slot.queue)
    assert slot.give_back_expired() == 1
    assert listener.heard() == [0]


def test_an_unread_claim_that_is_given_back_wakes(slot, listen):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    slot.queue.ask(claiming.unread, [0], "a", 1, 1)
    listener = listen(slot.queue)
    slot.queue.ask(returning.give_back, [0], "a", 1, 1)
    assert listener.heard()[-1] == 0


def test_released_claims_wake(slot, listen):
    slot.put_due([b"m"])
    slot.claim()
    listener = listen(slot.queue)
    slot.release()
    assert listener.heard() == [0]


def test_the_end_of_a_pause_wakes(slot, listen):
    listener = listen(slot.queue)
    slot.queue.ask(claiming.pause, None)
    assert listener.heard() == []
    slot.queue.ask(claiming.pause, claiming.PAUSE_ENDS)
    assert listener.heard() == [0]


# -- what does not


@pytest.fixture
def no_publishing(slot):
    """For the server's default user, whom all connections of the tests have."""
    commands = ["publish", "spublish"] if slot.queue.server.version >= (7, 0) else ["publish"]
    slot.redis.execute_command("ACL", "SETUSER", "default", *(f"-{each}" for each in commands))
    yield
    slot.redis.execute_command("ACL", "SETUSER", "default", *(f"+{each}" for each in commands))


def test_a_user_who_may_not_publish_still_sends(slot, listen, no_publishing):
    listener = listen(slot.queue)
    assert slot.queue.send([b"m"], fixed_time=1000).new == 1
    assert slot.store == {b"m": 1000}
    assert listener.heard() == []


def test_what_is_moved_wakes_if_it_is_due_before_all_others(slot, listen):
    slot.put({b"a": FAR_MS, b"b": FAR_MS + 1})
    slot.put_waiting({b"retry": FAR_MS + 4})
    listener = listen(slot.queue)
    move = functools.partial(slot.queue.ask, sending.move)
    assert move({0: [b"b"]}, FAR_MS + 2) == 1
    assert listener.heard() == []
    assert move({0: [b"b"]}, 1000) == 1
    assert listener.heard() == [0]
    assert move({0: [b"retry"]}, 1000) == 1
    assert listener.heard() == [0]
    assert move({0: [b"nowhere"]}, 1000) == 0
    assert listener.heard() == []
