"""Counts of all queues."""

from rmq_spark.client import QueueFigures
from rmq_spark.client.queue import overview_of
from rmq_spark.protocol import reading
from rmq_spark.protocol.reading import SLOTS_A_FIGURES_CALL
from rmq_spark.topics.keys import KEYS_OF_FIGURES

from ..seeding import FAR_MS, LONG_MS, numbered
from ..waiting import wait_until


def test_a_topic_without_messages_has_figures_of_zero(slot):
    figures = slot.queue.figures()
    empty = QueueFigures(0, 0, None)
    assert (figures.store, figures.prepare, figures.retry, figures.dead) == (empty,) * 4
    assert set(figures.counters.values()) == {0}


def test_the_store_counts_all_and_due_and_tells_the_oldest_due_time(slot):
    slot.put({b"retried": 3, b"second": 2000, b"first": 1000, b"far": FAR_MS})
    assert slot.queue.figures().store == QueueFigures(4, 3, 1000)


def test_nothing_due_has_no_oldest(slot):
    slot.put({b"retried": 3, b"far": FAR_MS})
    assert slot.queue.figures().store == QueueFigures(2, 1, None)


def test_priorities_are_all_due_and_have_no_oldest(new_slot):
    slot = new_slot("Priority")
    slot.put({b"low": 17, b"high": 2**53})
    assert slot.queue.figures().store == QueueFigures(2, 2, None)


def test_claimed_messages_are_due_when_the_lease_has_run_out(slot):
    slot.put_due(numbered(3))
    slot.claim("a", limit=1, lease_ms=LONG_MS)
    slot.claim("b", limit=2, lease_ms=2 * LONG_MS)
    first, second = slot.records["a:1:0"].deadline, slot.records["b:1:0"].deadline
    assert slot.queue.figures().prepare == QueueFigures(3, 0, min(first, second))
    slot.release("b")
    assert slot.queue.figures().prepare == QueueFigures(3, 2, slot.records["b:1:0"].deadline)


def test_empty_claims_have_no_deadline_that_matters(slot):
    slot.claim(lease_ms=0)
    assert slot.queue.figures().prepare == QueueFigures(0, 0, None)
    assert [seen.held_slots for seen in overview_of(slot.queue).consumers] == [0]


def test_the_retry_queue_tells_the_next_retry(slot):
    slot.put_waiting({b"over": 5_016, b"later": FAR_MS + 3})
    assert slot.queue.figures().retry == QueueFigures(2, 1, 5000)


def test_the_dead_queue_tells_the_first_death(slot):
    slot.bury(b"m", b"n")
    slot.redis.zadd(slot.keys.dead(0), {b"n": 9})
    assert slot.queue.figures().dead == QueueFigures(2, 0, 1)


def test_slots_add_up(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    queue.send(numbered(100), fixed_time=FAR_MS)
    due = queue.now_ms() + 300
    queue.send([b"due"], fixed_time=due)
    wait_until(lambda: queue.now_ms() > due, "it is due")
    queue.send([b"due later"], fixed_time=due + 1)
    figures = queue.figures()
    assert figures.store == QueueFigures(102, 2, due)
    assert figures.counters["accepted"] == 102


def test_slots_of_one_call_and_of_several_add_up_alike(broker):
    broker.create("T", "FixedTime", 4 * SLOTS_A_FIGURES_CALL)
    queue = broker.queue("T")
    first_due = queue.now_ms() - 1000
    queue.send(numbered(200), fixed_time=FAR_MS)
    queue.send([b"due later"], fixed_time=first_due + 1)
    queue.send([b"due"], fixed_time=first_due)
    for slot in queue.slots[::2]:
        queue.server.command("ZADD", queue.keys.retry(slot), FAR_MS + 1000 * (slot % 5) + 3, "m")
        queue.server.command("ZADD", queue.keys.dead(slot), 500 + slot % 7, "m")
    with broker.consumer("T", "clerk") as clerk, broker.consumer("T", "aide") as aide:
        assert len(clerk.poll(1)) == len(aide.poll(1)) == 1
        broker.alter("T", paused=True)  # a mark in each slot, which is no consumer
        of_all, of_each = (
            queue.ask(reading.overview, one_node=one_node) for one_node in (True, False)
        )
        by_slot, _ = queue.ask(reading.figures_by_slot)
        found = queue.ask(reading.holders)
    assert of_all.figures == of_each.figures == by_slot
    assert of_all.figures.store.count == 200
    assert of_all.figures.prepare == QueueFigures(2, 0, of_each.figures.prepare.oldest_ms)
    assert of_all.figures.retry == QueueFigures(32, 0, FAR_MS)
    assert of_all.figures.dead == QueueFigures(32, 0, 500)
    assert of_all.figures.counters["accepted"] == 202
    for known in (of_all, of_each):
        consumers = {seen.consumer: seen for seen in known.consumers}
        assert consumers.keys() == {"clerk", "aide"}
        for name, seen in consumers.items():
            headers = [slot.headers[name] for slot in found if name in slot.headers]
            assert seen.slots == len(headers)
            assert seen.held_slots == 1
            assert known.now_ms - seen.ms_ago == max(header.seen_ms for header in headers)


def test_a_call_counts_as_many_slots_as_their_consumers_allow(broker):
    broker.create("T", "FixedTime", SLOTS_A_FIGURES_CALL)
    queue = broker.queue("T")
    queue.send(numbered(100), fixed_time=FAR_MS)
    for slot in queue.slots[:4]:
        known = [text for name in range(600) for text in (name, "1 0 0 0 1")]
        queue.server.command("HSET", queue.keys.consumers(slot), *known)
    keys, args = queue.keys.of_figures(queue.slots), [0, 1]
    counted = []
    while keys:
        reply = queue.server.call("figures", keys, args)
        counted.append(reply[14])
        keys = keys[reply[14] * KEYS_OF_FIGURES :]
    assert counted == [2, 2, 12]
    seen = overview_of(queue)
    assert seen.figures.store.count == 100
    assert {consumer.slots for consumer in seen.consumers} == {4}
    assert len(seen.consumers) == 600


def test_nothing_is_written(slot):
    slot.put_due(numbered(2))
    slot.claim(limit=1, lease_ms=0)
    before = slot.dump()
    slot.queue.figures()
    assert slot.dump() == before


def test_what_claims_hold_counts_and_not_what_they_took(slot):
    slot.put_due(numbered(5))
    slot.claim(limit=4)
    slot.rollback(numbered(3))
    deadline = slot.records["a:1:0"].deadline
    assert slot.queue.figures().prepare == QueueFigures(1, 0, deadline)
    slot.rollback(numbered(4)[3:])
    assert slot.queue.figures().prepare == QueueFigures(0, 0, None)


def test_the_fullest_slot_is_the_one_where_most_messages_wait_retries_too(broker):
    broker.create("T", "FixedTime", 2, max_messages=20, retry_backoff="1h")
    queue = broker.queue("T")
    basis = next(f"{n}" for n in range(99) if queue.definition.slot_of(f"{n}") == 0)
    other = next(f"{n}" for n in range(99) if queue.definition.slot_of(f"{n}") == 1)
    queue.send(["a", "b", "c"], slot_basis=basis, fixed_time=1000)
    with broker.consumer("T", "reader") as reader:
        reader.poll(1).rollback()
    queue.send(["d"], slot_basis=other, fixed_time=1000)
    assert overview_of(queue).used == {"messages": 0.3}
