"""Another due time or priority for what waits."""

import pytest

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol import sending
from rmq_spark.protocol.pages import first_entries

from ..seeding import FAR_MS, numbered, suspect


def move(slot, contents, score):
    return slot.queue.ask(sending.move, {0: contents}, score)


def test_a_first_delivery_gets_the_time_and_keeps_its_body(slot):
    slot.put({b"m": FAR_MS, b"other": FAR_MS})
    client, bodies = slot.queue.server.client, slot.queue.keys.bodies(0)
    client.hset(bodies, b"m", b"1payload")
    assert move(slot, [b"m", b"unknown"], 500) == 1
    assert slot.store == {b"m": 500, b"other": FAR_MS}
    assert client.hget(bodies, b"m") == b"1payload"
    assert slot.counters == {"accepted": 2}


def test_a_retry_that_waits_gets_the_end_of_its_wait_and_keeps_its_retries(slot):
    slot.put_waiting({b"m": 5_004, b"suspect": 5_000 - suspect(2, 3), b"other": 5_004})
    assert move(slot, [b"m", b"suspect"], 7_200) == 2
    assert slot.retry == {b"m": 8_004, b"suspect": 8_000 - suspect(2, 3), b"other": 5_004}


def test_a_retry_that_is_moved_as_far_as_can_be_keeps_its_retries(slot):
    slot.put({b"due": 15})
    slot.put_waiting({b"m": 5_015})
    assert move(slot, [b"m", b"due"], 2**53) == 2
    assert slot.retry == dict.fromkeys([b"m", b"due"], 2**53 // 1000 * 1000 - 985)


@pytest.mark.parametrize("score", [3, -17, suspect(2, 3)])
def test_a_retry_that_is_due_waits_until_then(slot, score):
    slot.put({b"m": score, b"other": 3})
    assert move(slot, [b"m"], FAR_MS) == 1
    assert slot.store == {b"other": 3}
    assert slot.retry == {b"m": FAR_MS + abs(score)}


def test_a_retry_that_is_due_stays_so_if_moved_to_now(slot):
    slot.put({b"m": 3})
    assert move(slot, [b"m"], 1000) == 1
    assert (slot.store, slot.retry) == ({b"m": 3}, {})


def test_what_a_consumer_holds_and_what_is_dead_stays(slot):
    slot.put_due([b"held"])
    slot.claim()
    slot.bury(b"dead")
    before = slot.dump()
    assert move(slot, [b"held", b"dead"], FAR_MS) == 0
    assert slot.dump() == before


def test_of_a_message_sent_again_in_flight_only_the_copy_that_waits_is_moved(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.put_due([b"m"])
    assert move(slot, [b"m"], FAR_MS) == 1
    assert (slot.store, set(slot.prepare)) == ({b"m": FAR_MS}, {b"m"})


def test_what_is_moved_to_the_past_counts_as_due_from_now_on(slot):
    slot.put({b"m": FAR_MS})
    before = slot.now_ms()
    move(slot, [b"m"], 1000)
    since = int(slot.queue.server.client.hget(slot.queue.keys.stats(0), "dueSince"))
    assert before <= since <= slot.now_ms()


def test_priorities_change_but_not_of_what_was_rolled_back(broker):
    topic = broker.create("P", "Priority", 1)
    queue = broker.queue(topic.name)
    queue.send(["a", "b", "again"], priority=50)
    with broker.consumer(topic.name, "clerk") as consumer:
        batch = consumer.poll()
        batch.rollback([m for m in batch if m.content == b"again"])
        batch.rollback([m for m in batch if m.content != b"again"], charge=False)
    assert queue.move(["a", "again"], priority=99) == 1
    entries = first_entries(queue.pages("store", 0), 9)
    assert {entry.content: entry.priority for entry in entries} == {
        b"a": 99,
        b"b": 50,
        b"again": None,
    }


@pytest.mark.parametrize("score", [16, 0, 2**53 + 2, "soon"])
def test_a_score_that_is_none_is_refused_and_nothing_is_moved(slot, score):
    slot.put({b"m": FAR_MS})
    before = slot.dump()
    with pytest.raises(ScriptFailed, match="above 16"):
        move(slot, [b"m"], score)
    assert slot.dump() == before


def test_one_call_takes_more_than_lua_can_unpack(slot):
    stored, waiting, due = numbered(9000, "s"), numbered(9000, "w"), numbered(9000, "d")
    slot.put(dict.fromkeys(stored, FAR_MS) | dict.fromkeys(due, 3))
    slot.put_waiting(dict.fromkeys(waiting, 5_004))
    keys = slot.queue.queues.keys_of(0, "store retry stats")
    args = [1, FAR_MS + 1000, *stored, *waiting, *due]
    assert slot.queue.server.call("move", keys, args) == 27_000
    assert slot.store == dict.fromkeys(stored, FAR_MS + 1000)
    assert set(slot.retry) == {*waiting, *due}
