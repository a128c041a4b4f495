"""Claims of exclusive topics: epochs, and other consumers' messages in the same slot."""

import pytest

from rmq_spark.errors import ExclusiveSlot
from rmq_spark.protocol import claiming


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
    claim = slot.claim("a", epoch=6)
    assert claim.fenced
    assert claim.contents == []
    assert slot.records["a:1:0"].count == 0
    assert slot.store == {b"m": 1000}


@pytest.mark.parametrize("epoch", [7, 8])
def test_the_same_or_a_higher_epoch_pops(slot, epoch):
    slot.claim("b", epoch=7)
    slot.put_due([b"m"])
    claim = slot.claim("a", epoch=epoch)
    assert (claim.contents, claim.fenced) == ([b"m"], False)


def test_messages_that_another_consumer_holds_keep_a_new_owner_waiting(slot):
    slot.put_due([b"held", b"due"])
    slot.claim("a", epoch=1, limit=1)
    claim = slot.claim("b", epoch=2)
    assert (claim.contents, claim.fenced) == ([], False)
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
    assert slot.claimed("b", epoch=2) == [b"m"]


def test_expired_messages_that_could_not_all_be_given_back_still_keep_one_waiting(slot):
    slot.put({f"m{n:05}": 1000 for n in range(3 * 2048)})
    for ordinal in range(3):
        slot.claim("a", ordinal=ordinal, epoch=1, lease_ms=0)
    claim = slot.claim("b", epoch=2)
    assert (claim.contents, claim.moved) == ([], 4096)
    assert len(slot.claimed("b", seq=2, epoch=2)) == 2048


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
