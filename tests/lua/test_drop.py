"""All that a slot holds is deleted, and nothing of it is left behind."""

import pytest

from rmq_spark.protocol import claiming, returning

from ..seeding import LONG_MS, Slot, numbered


@pytest.fixture
def slot(broker):
    """A slot with something in each of its keys; dropped, it need not conserve messages."""
    made = Slot(broker, "T", "FixedTime", groups=("", "audit"))
    made.put_due(numbered(9))
    made.claim("a", limit=2)
    made.claim("b", limit=2, lease_ms=0)
    made.claim("empty", due_before_ms=17)
    made.rollback(numbered(1), delay_ms=LONG_MS)
    made.bury(b"dead")
    return made


def drop(slot, names=()):
    """One call of the script."""
    return slot.queue.server.pipeline([returning.drop_call(slot.queue.queues, 0, names)])[0]


def test_nothing_is_left(slot):
    assert len(slot.dump()) == 9
    slot.queue.ask(returning.drop)
    assert slot.dump() == {}


@pytest.mark.parametrize(
    "told",
    [[], ["a:1:0"], ["a:1:0", "b:1:0"], ["b:1:0", "empty:1:0"], ["x:1:0", "y:1:0", "z:1:0"]],
)
def test_a_claim_that_was_not_named_keeps_everything(slot, told):
    before = slot.dump()
    done, *names = drop(slot, told)
    assert (done, sorted(names)) == (0, [b"a:1:0", b"b:1:0", b"empty:1:0"])
    assert slot.dump() == before


def test_a_name_too_many_does_no_harm(slot):
    assert drop(slot, ["gone:7:0", "a:1:0", "b:1:0", "empty:1:0"]) == [1]
    assert slot.dump() == {}


def test_a_slot_without_claims_needs_no_names(slot):
    slot.commit("a")
    slot.queue.expire()
    slot.commit("empty")
    assert drop(slot) == [1]
    assert slot.dump() == {}


def test_an_empty_slot_is_dropped_as_well(slot):
    assert drop(slot, ["a:1:0", "b:1:0", "empty:1:0"]) == [1]
    assert drop(slot) == [1]


@pytest.mark.parametrize("script", ["claim", "commit", "give_back", "plan", "replay"])
def test_a_call_that_comes_behind_it_leaves_no_key(slot, script):
    """Failed before: the header of its consumer stayed for ever, and of a claim also its record."""
    slot.queue.ask(returning.drop)
    calls = {
        "claim": slot.claim,
        "commit": lambda: slot.commit("a", expected={0: ["a:1:0"]}),
        "give_back": lambda: slot.queue.ask(returning.give_back, [0], "a", 1, 1),
        "plan": lambda: slot.queue.ask(claiming.plan, [0], "a", 1, "mark"),
        "replay": lambda: slot.queue.ask(claiming.replay, "a", 1, 0, 1, LONG_MS),
    }
    calls[script]()
    assert slot.dump() == {}
    slot.queue.send([b"m"], fixed_time=1000)
    calls[script]()
    assert slot.header("a").run == 1


def test_other_groups_keep_theirs(slot):
    audit = slot.queue.of_group("audit")
    audit.server.client.zadd(audit.keys.store(0), {b"m": 1000})
    slot.queue.ask(returning.drop)
    assert list(slot.dump()) == [audit.keys.store(0)]


def test_all_slots_are_dropped(broker):
    broker.create("T4", "FixedTime", 4)
    queue = broker.queue("T4")
    queue.send(numbered(100), fixed_time=1000)
    terms = claiming.Claiming("a", 1, 1, lease_ms=LONG_MS)
    queue.ask(claiming.claim, [claiming.ClaimRequest(slot, 0, 5) for slot in (0, 2, 3)], terms)
    queue.ask(returning.drop)
    left = broker.server.client.keys(f"{broker.key_prefix}*T4_*")
    assert left == []


def test_a_slot_with_very_many_claims_is_dropped(slot):
    slot.put_claims(9000, deadline=1)
    slot.queue.ask(returning.drop)
    assert slot.dump() == {}
