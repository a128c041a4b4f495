"""Where a message is, in any queue."""

import pytest

from rmq_spark.client import Message
from rmq_spark.protocol import reading

from ..seeding import FAR_MS, numbered


def find(slot, name):
    (pages,) = slot.queue.ask(reading.find, {0: [name]})
    return [next(page.entries()) for page in pages]


@pytest.mark.parametrize("name", [b"there", b"nowhere"])
def test_it_is_in_the_queue_that_says_so(slot, name):
    slot.put({b"there": FAR_MS, b"other": FAR_MS})
    found = find(slot, name)
    assert [(entry.queue, entry.due_time_ms) for entry in found] == (
        [("store", FAR_MS)] if name == b"there" else []
    )


def test_a_copy_in_each_queue_is_found(slot):
    slot.put_due([b"x", b"m"])
    slot.claim()
    slot.put({b"m": FAR_MS})
    slot.bury(b"m")
    found = {entry.queue: entry for entry in find(slot, b"m")}
    assert set(found) == {"store", "prepare", "dead"}
    assert (found["prepare"].consumer, found["prepare"].retries_left) == ("a", 16)
    assert found["prepare"].prepared_at_ms == slot.records["a:1:0"].made
    assert found["dead"].died_at_ms == 1


def test_more_claims_than_lua_unpacks_are_searched(slot):
    slot.put_due([b"m"])
    slot.claim()
    client, claims = slot.queue.server.client, slot.queue.keys.claims(0)
    others = dict.fromkeys((f"b:{n}:0" for n in range(1, 8001)), client.hget(claims, "a:1:0"))
    client.hset(claims, mapping=others)
    assert [entry.queue for entry in find(slot, b"m")] == ["prepare"]
    client.hdel(claims, *others)  # they have no messages


def test_a_retry_that_waits_is_found(slot):
    slot.put_waiting({b"m": 5_004})
    (entry,) = find(slot, b"m")
    assert (entry.queue, entry.due_time_ms, entry.retries_left) == ("retry", 5000, 4)


@pytest.mark.parametrize("descending", [False, True])
def test_each_copy_has_the_body_of_its_queue(broker, descending):
    values = {"priority": 50} if descending else {"fixed_time": 1000}
    broker.create("K", "Priority" if descending else "FixedTime", 1, keyed=True)
    queue = broker.queue("K")
    keyed = [(name, f"held {name}") for name in ("a", "m", "z")]
    queue.send(keyed_messages(keyed, **values))
    with broker.consumer("K", "clerk") as consumer:
        assert len(consumer.poll()) == 3
        queue.send(keyed_messages([("m", "newer")], **values))
        found = {entry.queue: entry for entry in queue.find(["m"])}
        assert found["prepare"].content == b"held m"
        assert found["store"].content == b"newer"


def keyed_messages(pairs, **values):
    return [Message(content, key=key, **values) for key, content in pairs]


def test_claims_that_the_caller_does_not_name_are_told(slot):
    slot.put_due(numbered(4))
    for seq in (1, 2):
        slot.claim(seq=seq, limit=1)
    keys = slot.queue.queues.keys_of(0, "store retry dead deaths bodies claims")
    first = slot.queue.queues.claims_and_bodies(0, ["a:1:0"])
    reply = slot.queue.server.call("find", [*keys, *first], [b"m00001", "a:1:0"])
    assert (reply[0], set(reply[1:])) == (-1, {b"a:1:0", b"a:2:0"})
    assert [entry.queue for entry in find(slot, b"m00001")] == ["prepare"]


def test_nothing_is_changed(slot):
    slot.put_due([b"m"])
    slot.claim()
    before = slot.dump()
    find(slot, b"m")
    assert slot.dump() == before


def test_without_a_slot_basis_all_slots_are_looked_into(broker):
    broker.create("T", "FixedTime", 8)
    queue = broker.queue("T")
    queue.send(["m"], fixed_time=FAR_MS)
    queue.send(["m"], fixed_time=FAR_MS, slot_basis="customer 1")
    assert len(queue.find(["m", "m", "other"])) == 2
    (entry,) = queue.find(["m"], slot_basis="customer 1")
    assert entry.slot == queue.definition.slot_of(b"customer 1")
    assert queue.find({entry.slot: ["m"]}) == [entry]


def test_a_death_has_its_reason_and_what_is_requeued_its_body(broker):
    broker.create("D", "FixedTime", 1, keyed=True, max_retries=0)
    queue = broker.queue("D")
    queue.send([Message("payload", key="m", fixed_time=1000)])
    with broker.consumer("D", "clerk") as consumer:
        consumer.poll().rollback(reason="broken")
    (entry,) = queue.find(["m"])
    assert (entry.queue, entry.consumer, entry.reason) == ("dead", "clerk", "broken")
    assert entry.content == b"payload"
    queue.requeue(["m"])
    (entry,) = queue.find(["m"])
    assert (entry.queue, entry.content) == ("store", b"payload")
