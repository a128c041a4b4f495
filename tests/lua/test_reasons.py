"""Why messages died: kept with each of them, and counted by class."""

import pytest

from rmq_spark.protocol import returning

from ..seeding import LONG_MS, numbered, suspect


@pytest.fixture
def slot(new_slot):
    """A slot whose messages have no retry."""
    return new_slot(max_retries=0)


def test_a_dead_message_keeps_its_consumer_and_the_reason(slot):
    slot.put_due([b"m", b"n"])
    slot.claim()
    slot.rollback([b"m", b"n"], reasons=["ValueError: no such customer"])
    assert slot.deaths == dict.fromkeys([b"m", b"n"], b"a ValueError: no such customer")


def test_each_message_may_have_a_reason_of_its_own(slot):
    slot.put_due(numbered(3))
    slot.claim()
    asked = [numbered(3)[0], b"not held", *numbered(3)[1:]]
    slot.rollback(asked, reasons=["first", "nobody's", "second", "third"])
    assert list(map(slot.deaths.get, numbered(3))) == [b"a first", b"a second", b"a third"]


def test_a_reason_that_is_the_content_of_another_message_leaves_that_one_alone(slot):
    slot.put_due([b"m", b"n"])
    slot.claim()
    assert slot.rollback([b"m"], reasons=["n"]) == (1, 0)
    assert slot.deaths == {b"m": b"a n"}
    assert set(slot.prepare) == {b"n"}


def test_without_a_reason_the_consumer_is_kept(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.rollback([b"m"])
    assert slot.deaths == {b"m": b"a "}


def test_a_message_with_a_retry_left_keeps_no_reason(new_slot):
    slot = new_slot(max_retries=1)
    slot.put_due([b"m"])
    slot.claim()
    slot.rollback([b"m"], reasons=["first"])
    assert slot.deaths == {}
    slot.claim(seq=2)
    slot.rollback([b"m"], "a:2:0:1", reasons=["last"])
    assert slot.deaths == {b"m": b"a last"}


def test_one_that_dies_again_keeps_the_last_reason(slot):
    for seq, reason in enumerate(["first", "second"], 1):
        slot.put_due([b"m"])
        slot.claim(seq=seq)
        slot.rollback([b"m"], f"a:{seq}:0:1", reasons=[reason])
    assert slot.deaths == {b"m": b"a second"}


def test_a_lease_that_ran_out_is_a_reason(slot):
    slot.put({b"m": suspect(4, 1)})
    slot.claim(alone=True, lease_ms=0)
    slot.wait_past(slot.records["a:1:0"].deadline)
    slot.give_back_expired("b")
    assert slot.deaths == {b"m": b"a lease ran out"}
    assert slot.queue.figures().deaths == {"lease ran out": 1}


def test_a_claim_that_its_consumer_gave_up_is_given_back(slot):
    slot.put({b"m": suspect(4, 1), b"n": 1000})
    slot.claim(alone=True)
    slot.release()
    slot.give_back_expired("b")
    slot.claim(seq=2)
    slot.queue.ask(returning.give_back, [0], "a", 1)
    assert slot.deaths == dict.fromkeys([b"m", b"n"], b"a given back")
    assert slot.queue.figures().deaths == {"given back": 2}


def test_what_is_dead_in_thousands_is_told_for_each(slot):
    slot.put_due(numbered(5000))
    slot.claim()
    slot.queue.ask(returning.give_back, [0], "a", 1)
    assert slot.deaths == dict.fromkeys(numbered(5000), b"a given back")


def test_reasons_for_more_than_one_call_stay_with_their_messages(slot):
    slot.put_due(numbered(5000))
    slot.claim()
    slot.rollback(numbered(5000), reasons=[f"E: {number}" for number in range(5000)])
    assert slot.deaths == {
        content: b"a E: %d" % number for number, content in enumerate(numbered(5000))
    }
    assert slot.queue.figures().deaths == {"E": 5000}


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        ("", "none"),
        ("ValueError: 7", "ValueError"),
        ("ValueError", "ValueError"),
        ("shop.errors.NoCustomer: 7", "shop.errors.NoCustomer"),
        ("A" * 100, "A" * 64),
        ("no such customer", "other"),
        ("no such: customer", "other"),
        ("7: seven", "other"),
        (": seven", "other"),
        ("Fehler \u00e9", "other"),
    ],
)
def test_deaths_are_counted_by_the_class_of_the_reason(slot, reason, counted):
    slot.put_due([b"m", b"n"])
    slot.claim()
    slot.rollback([b"m", b"n"], reasons=[reason])
    assert slot.queue.figures().deaths == {counted: 2}
    assert slot.counters["dead"] == 2


def test_the_classes_of_a_slot_are_few(slot):
    """A class that is counted already goes on; a new one counts as other."""
    slot.put_due(numbered(200))
    slot.claim()
    first, others = numbered(200)[:100], numbered(200)[100:]
    slot.rollback(first, reasons=[f"E{number}" for number in range(100)])
    counted = set(slot.queue.figures().deaths)
    assert len(counted) < 32
    assert "other" in counted
    known = (counted - {"other"}).pop()
    before = slot.queue.figures().deaths[known]
    slot.rollback(others, reasons=[known])
    assert set(slot.queue.figures().deaths) == counted
    assert slot.queue.figures().deaths[known] == before + 100
    assert sum(slot.queue.figures().deaths.values()) == slot.counters["dead"] == 200


def test_a_message_that_is_claimed_and_waits_has_none(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=LONG_MS)
    assert slot.deaths == {}
