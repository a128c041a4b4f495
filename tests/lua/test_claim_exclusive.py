"""Claims of exclusive topics: epochs, and other consumers' messages in the same slot."""

import pytest

from rmq_spark.client.administration import forget_epochs
from rmq_spark.errors import ExclusiveSlot
from rmq_spark.protocol import claiming, reading, returning

from ..seeding import numbered

FENCED = 1  # as claim.lua answers


@pytest.fixture
def slot(new_slot):
    return new_slot(exclusive=True)


def epoch_of(slot):
    return slot.redis.hget(slot.keys.consumers(0), "@epoch")


def test_the_highest_epoch_is_stored(slot):
    slot.claim("a", seq=1, epoch=5)
    assert epoch_of(slot) == b"5"
    slot.claim("a", seq=2, epoch=7)
    assert epoch_of(slot) == b"7"
    slot.claim("a", seq=3, epoch=6)
    assert epoch_of(slot) == b"7"


def test_a_lower_epoch_pops_nothing_is_told_and_seals_an_empty_record(slot):
    slot.claim("b", epoch=7)
    slot.put_due([b"m"])
    assert slot.claim_reply("a", epoch=6)[:2] == [0, FENCED]
    assert slot.claimed("a", epoch=6) == []
    assert slot.records["a:1:0"].sealed == 0
    assert slot.store == {b"m": 1000}


@pytest.mark.parametrize("epoch", [7, 8])
def test_the_same_or_a_higher_epoch_pops(slot, epoch):
    slot.claim("b", epoch=7)
    slot.put_due([b"m"])
    assert slot.claim_reply("a", epoch=epoch)[:2] == [1, 0]
    assert slot.claimed("a", epoch=epoch) == [b"m"]


def test_messages_that_another_consumer_holds_keep_a_new_owner_waiting(slot):
    slot.put_due([b"held", b"due"])
    slot.claim("a", epoch=1, limit=1)
    assert slot.claim_reply("b", epoch=2, others=["a:1:0"])[:2] == [0, 0]
    assert slot.claimed("b", epoch=2) == []
    slot.commit("a")
    assert slot.claimed("b", seq=2, epoch=2) == [b"due"]


def test_ones_own_messages_and_others_empty_records_keep_nobody_waiting(slot):
    slot.claim("b", epoch=1)
    slot.put_due([b"one", b"two"])
    assert slot.claimed("a", epoch=1, limit=1) == [b"one"]
    assert slot.claimed("a", seq=2, epoch=1) == [b"two"]


def test_expired_messages_of_another_are_given_back_first(slot):
    slot.put_due([b"m"])
    slot.claim("a", epoch=1, lease_ms=0)
    due = slot.queue.ask(reading.due, [0], "b", epochs={0: 2})
    assert due[0].expired == ("a:1:0",)
    assert slot.queue.ask(returning.give_back_expired, due, "b") == {0: 1}
    assert slot.claimed("b", epoch=2) == [b"m"]


def test_expired_messages_that_were_not_given_back_still_keep_one_waiting(slot):
    slot.put_due([b"expired", b"due"])
    slot.claim("a", epoch=1, limit=1, lease_ms=0)
    assert slot.claimed("b", epoch=2) == []
    assert epoch_of(slot) == b"2"
    assert slot.queue.expire() == 1
    assert slot.claimed("b", seq=2, epoch=2) == [b"expired"]
    assert slot.claimed("b", seq=3, epoch=2) == [b"due"]


def test_a_claim_that_was_not_told_of_another_takes_no_epoch(slot):
    slot.put_due(numbered(2))
    slot.claim("a", epoch=1, limit=1)
    slot.put_due([b"new"])
    assert slot.claim_reply("b", epoch=2) == [-1, b"a:1:0"]
    assert epoch_of(slot) == b"1"


def test_without_an_epoch_a_slot_that_has_one_is_refused(slot):
    slot.claim("a", epoch=1)
    before = slot.dump()
    with pytest.raises(ExclusiveSlot, match="consumed exclusively"):
        slot.claim("b")
    assert slot.dump() == before


def test_a_commit_never_looks_at_epochs(slot):
    slot.put_due([b"m"])
    slot.claim("a", epoch=1)
    slot.claim("b", epoch=9)
    slot.queue.ask(claiming.renew, [0], "a", 1, 1000)
    slot.release("a")
    assert slot.commit("a").committed == 1


def test_switching_exclusive_off_forgets_the_epochs(slot):
    slot.claim("a", epoch=3)
    slot.broker.alter(slot.queue.definition.name, exclusive=False)
    assert epoch_of(slot) is None
    slot.put_due([b"m"])
    assert slot.claimed("b") == [b"m"]


def test_an_owner_at_work_keeps_nobody_from_a_topic_that_was_shared(slot):
    """Seen: its claim left the epoch again, and no reader without one ever got a message."""
    name = slot.queue.definition.name
    slot.broker.alter(name, exclusive=False)
    slot.put_due([b"one", b"two"])
    slot.claim("a", epoch=7, limit=1)
    assert slot.queue.ask(reading.due, [0], "b")[0].due == 1
    assert epoch_of(slot) is None
    slot.claim("a", seq=2, epoch=7, limit=1)
    slot.put_due([b"three"])
    assert slot.claimed("b") == [b"three"]
    slot.claim("a", seq=3, epoch=7)
    slot.broker.alter(name, exclusive=False)
    assert epoch_of(slot) is None


def test_the_epoch_of_a_later_owner_stays(slot, monkeypatch):
    broker, name = slot.broker, slot.queue.definition.name
    shared = broker.alter(name, exclusive=False)
    slot.claim("a", epoch=7)
    find = broker.find

    def late(name):
        found = find(name)
        broker.alter(name, exclusive=True)
        slot.claim("b", epoch=8)
        return found

    monkeypatch.setattr(broker, "find", late)
    assert forget_epochs(broker, shared)
    assert epoch_of(slot) == b"8"
