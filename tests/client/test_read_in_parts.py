"""A claim that is read in parts: each of its messages once and in order, whatever leaves it."""

from itertools import chain

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import LeaseLost
from rmq_spark.protocol import claiming
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.protocol.names import ClaimId

from ..seeding import LONG_MS, Slot, numbered, rollback

TERMS = claiming.Claiming("a", 1, 1, LONG_MS)


def parts_of(slot, rows, between=lambda number: None):
    """The contents of each part; between: what happens before part 1, 2, ..."""
    request = ClaimRequest(0, 0, rows=rows)
    [part] = slot.queue.ask(claiming.claim, [request], TERMS)
    parts = [part]
    while parts[-1].left:
        between(len(parts))
        parts.append(slot.queue.ask(claiming.read_on, parts[-1], TERMS, rows))
    return [list(part.contents) for part in parts]


def joined(parts):
    return list(chain.from_iterable(parts))


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize(
    ("rows", "sizes"), [(3, [3, 3, 3, 1]), (5, [5, 5]), (10, [10]), (20, [10])]
)
def test_the_parts_are_the_claim(new_slot, topic_type, rows, sizes):
    slot = new_slot(topic_type)
    slot.put_due(numbered(10))
    parts = parts_of(slot, rows)
    assert [len(part) for part in parts] == sizes
    assert joined(parts) == slot.claimed()


def test_an_empty_claim_has_one_empty_part(slot):
    assert parts_of(slot, 3) == [[]]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize("score", [None, 5000], ids=["scattered", "equal scores"])
@pytest.mark.parametrize("gone", [[0], [2], [0, 1, 2], [3], [2, 3, 4], [9], [1, 8]])
def test_what_is_rolled_back_between_parts_hides_no_other(new_slot, topic_type, score, gone):
    slot = new_slot(topic_type)
    contents = numbered(10)
    if score is None:
        slot.put_due(contents)
    else:
        slot.put(dict.fromkeys(contents, score))
    order = slot.queue.ask(claiming.claim, [ClaimRequest(0, 0)], TERMS)[0].contents
    leaving = [order[rank] for rank in gone]

    def roll_back(number):
        if number == 1:
            assert slot.rollback(leaving) == (len(leaving), 0)

    parts = parts_of(slot, 3, roll_back)
    assert parts[0] == order[:3]
    assert joined(parts[1:]) == [content for content in order[3:] if content not in leaving]


def test_a_claim_that_is_given_back_between_parts_is_lost(slot):
    slot.put_due(numbered(10))

    def take_away(number):
        slot.release("a")
        assert slot.give_back_expired("b") == 10

    with pytest.raises(LeaseLost):
        parts_of(slot, 3, take_away)


def test_a_newer_run_between_parts_supersedes(slot):
    """The next part alone does not ask for the run; the batch's commit does."""
    slot.put_due(numbered(10))
    parts = parts_of(slot, 5, lambda number: slot.claim("a", run=2))
    assert joined(parts) == numbered(10)
    assert slot.claim("a", run=2).contents == numbered(10)


def test_what_is_rolled_back_while_scripts_are_loaded_again_hides_no_other(own_redis):
    """The first part is read after the claim has told how many messages it holds."""
    broker, other = connect(own_redis.url), connect(own_redis.url)
    slot = Slot(broker, "T")
    slot.put_due(numbered(10))
    assert joined(parts_of(slot, 3)) == numbered(10)
    claim_id = str(ClaimId("a", 1, 0, TERMS.run))

    def load_late():
        assert rollback(other.queue("T"), 0, claim_id, numbered(2)) == (2, 0)
        load()

    load, broker.server._load = broker.server._load, load_late
    broker.server.client.script_flush()
    assert joined(parts_of(slot, 3)) == numbered(8, start=2)
    for each in (broker, other):
        each.close()
