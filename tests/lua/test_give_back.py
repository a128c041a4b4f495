"""One claim whose lease has ended is given back, whole."""

import pytest

from rmq_spark.protocol import claiming, reading, returning

from ..seeding import LONG_MS, numbered, suspect


def give_back(slot, name="a:1:0"):
    """One call of the script, which is enough."""
    call = returning.give_back_call(slot.queue.queues, 0, name)
    ((messages, left),) = slot.queue.server.pipeline([call])
    assert left == b""
    return messages


def test_all_messages_go_back_with_the_retries_they_had_and_are_suspect(slot):
    deliveries = {b"first": 17, b"retried": 9, b"last": 1, b"second": 17}
    slot.put({b"first": 1000, b"retried": 9, b"last": 1, b"second": 2000})
    slot.claim(lease_ms=0)
    assert give_back(slot) == 4
    assert slot.store == {content: suspect(3, left) for content, left in deliveries.items()}
    assert slot.dead == slot.retry == {}
    assert slot.records == {}
    assert not slot.redis.exists(slot.keys.claim(0, "a:1:0"))
    assert slot.counters["rolledBack"] == 4
    slot.check_conservation()


def test_what_its_consumer_gave_up_goes_back_with_the_retries_it_has_left(slot):
    slot.put({b"first": 1000, b"retried": 9, b"last": 1, b"second": 2000})
    slot.claim()
    before = slot.now_ms()
    assert slot.queue.ask(returning.give_back, [0], "a", 1) == 4
    assert slot.store == {b"first": 16, b"retried": 8, b"second": 16}
    assert before <= slot.dead[b"last"] <= slot.now_ms()
    assert slot.counters["dead"] == 1


def test_other_claims_stay_as_they_are(slot):
    slot.put_due(numbered(3))
    for consumer in ("a", "aa", "b"):
        slot.claim(consumer, limit=1, lease_ms=0)
    before = slot.records
    assert give_back(slot, "aa:1:0") == 1
    assert slot.records == {name: before[name] for name in ("a:1:0", "b:1:0")}
    assert slot.store == {numbered(3)[1]: suspect(3, 17)}
    assert set(slot.prepare) == {numbered(3)[0], numbered(3)[2]}


def test_a_claim_whose_lease_runs_or_was_renewed_stays(slot):
    slot.put_due(numbered(1))
    slot.claim(lease_ms=LONG_MS)
    before = slot.dump()
    assert give_back(slot) == 0
    assert slot.dump() == before
    slot.release()
    slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS)
    before = slot.dump()
    assert give_back(slot) == 0
    assert slot.dump() == before


def test_a_lease_that_ends_now_has_ended(slot):
    slot.put_due(numbered(1))
    slot.claim(lease_ms=20)
    deadline = slot.records["a:1:0"].deadline
    replies = []
    while not replies or not replies[-1][1]:
        replies.append((slot.now_ms(), give_back(slot), slot.now_ms()))
    assert all(before < deadline for before, moved, _ in replies if not moved)
    assert replies[-1][2] >= deadline


def test_a_claim_without_a_record_goes_back_as_it_was(slot):
    stored = {b"first": 1000, b"retried": 9, b"second": 2000}
    slot.put(stored)
    slot.claim(lease_ms=LONG_MS)
    slot.redis.hdel(slot.keys.claims(0), "a:1:0")
    assert give_back(slot) == 3
    assert slot.store == stored
    assert not slot.redis.exists(slot.keys.claim(0, "a:1:0"))


@pytest.mark.parametrize("name", ["b:1:0", "a:1:1", "a:2:0"])
def test_a_claim_that_does_not_exist_has_nothing_to_give_back(slot, name):
    slot.put_due(numbered(1))
    slot.claim(lease_ms=0)
    before = slot.dump()
    assert give_back(slot, name) == 0
    assert slot.dump() == before


def test_a_second_time_changes_nothing(slot):
    slot.put_due(numbered(3))
    slot.claim(lease_ms=0)
    give_back(slot)
    before = slot.dump()
    assert give_back(slot) == 0
    assert slot.dump() == before


def test_a_claim_of_8192_goes_back_in_one_call(slot):
    slot.put_due(numbered(8192))
    slot.claim(lease_ms=0)
    assert give_back(slot) == 8192
    assert slot.store == dict.fromkeys(numbered(8192), suspect(1, 17))


def test_many_messages_wait_except_those_that_were_sent_again(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put_due(numbered(8192))
    slot.claim()
    slot.put(dict.fromkeys(numbered(8192)[::3], 7000))
    assert slot.queue.ask(returning.give_back, [0], "a", 1) == 8192
    again = set(numbered(8192)[::3])
    assert slot.store == dict.fromkeys(again, 7000)
    assert slot.waiting == dict.fromkeys(set(numbered(8192)) - again, 16)
    assert slot.counters["merged"] == len(again)


def test_what_replays_have_charged_stays_spent(slot):
    slot.put({b"first": 1000, b"retried": 5, b"low": 2})
    slot.claim()
    slot.claim(run=2)
    slot.claim(run=3, lease_ms=0)
    assert give_back(slot) == 3
    assert slot.store == {
        b"first": suspect(3, 15),
        b"retried": suspect(3, 3),
        b"low": suspect(3, 1),
    }


def test_what_was_rolled_back_before_is_not_given_back_again(slot):
    slot.put_due(numbered(3))
    slot.claim(lease_ms=0)
    slot.rollback(numbered(1), delay_ms=LONG_MS)
    assert give_back(slot) == 2
    assert slot.waiting == {numbered(1)[0]: 16}
    assert set(slot.store) == set(numbered(3)[1:])


def test_a_copy_sent_again_meanwhile_wins(slot):
    slot.put_due(numbered(2))
    slot.claim(lease_ms=0)
    slot.queue.send(numbered(1), fixed_time=7000)
    assert give_back(slot) == 2
    assert slot.store == {numbered(2)[0]: 7000, numbered(2)[1]: suspect(3, 17)}
    assert slot.counters["merged"] == 1


def test_a_message_without_retries_left_is_buried(new_slot):
    slot = new_slot(max_retries=0)
    slot.put({b"m": suspect(4, 1)})
    slot.claim(alone=True, lease_ms=0)
    before = slot.now_ms()
    assert give_back(slot) == 1
    assert before <= slot.dead[b"m"] <= slot.now_ms()
    assert slot.counters["dead"] == 1


def test_the_backoff_holds(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put({b"m": suspect(4, 17)})
    slot.claim(alone=True, lease_ms=0)
    assert give_back(slot) == 1
    assert (slot.store, slot.waiting) == ({}, {b"m": -suspect(4, 16)})


def test_an_undelivered_claim_goes_back_as_it_was(new_slot):
    slot = new_slot(max_retries=0, retry_backoff="1h")
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim(lease_ms=0)
    slot.queue.ask(claiming.unread, [0], "a", 1, 1)
    assert give_back(slot) == 2
    assert slot.store == {b"first": 1000, b"retried": 5}
    assert slot.dead == slot.retry == {}


def test_an_empty_claim_is_remembered(slot):
    """Its messages may have been rolled back since it was listed as expired."""
    slot.put_due(numbered(1))
    slot.claim("a", lease_ms=0)
    slot.claim("b", lease_ms=0)
    slot.rollback(numbered(1))
    before = slot.dump()
    assert give_back(slot) == 0
    assert give_back(slot, "b:1:0") == 0
    assert slot.dump() == before


def test_a_consumers_own_claims_come_back_before_those_of_others_and_in_order(slot):
    slot.put_due(numbered(4))
    for consumer in ("b", "aa"):
        slot.claim(consumer, limit=1)
    slot.claim("a", seq=1, limit=1)
    slot.claim("a", seq=2, limit=1)
    for consumer in ("b", "aa", "a"):
        slot.release(consumer)
    due = slot.queue.ask(reading.due, [0], "a")
    conversation = returning.give_back_expired(slot.queue.queues, due, "a")
    names = [call.args[0] for call in next(conversation).calls]
    assert names[:2] == ["a:1:0", "a:2:0"]
    assert sorted(names[2:]) == ["aa:1:0", "b:1:0"]


def test_the_answer_counts_messages_by_slot(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    queue.send(numbered(60), fixed_time=1000)
    sizes = queue.ask(reading.sizes, ["store"], queue.slots)
    terms = claiming.Claiming("a", 1, 1, lease_ms=0)
    queue.ask(claiming.claim, [claiming.ClaimRequest(slot, 0) for slot in (0, 2)], terms)
    due = queue.ask(reading.due, queue.slots, "b")
    moved = queue.ask(returning.give_back_expired, due, "b")
    assert moved == {0: sizes[0], 2: sizes[2]}
    assert queue.figures().store.count == 60
