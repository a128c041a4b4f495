"""A pause: slots that are marked make no new claim, and existing claims go on."""

import pytest

from rmq_spark.client.queue import overview_of
from rmq_spark.errors import AlreadyCommitted, ExclusiveSlot, Fenced, LeaseLost
from rmq_spark.protocol import claiming, reading, returning

from ..seeding import LONG_MS, numbered

PAUSED = b"@paused"
# As claim.lua answers.
PLAN_FORGOTTEN, TOPIC_PAUSED = 2, 3


def pause(slot, paused=True):
    slot.queue.ask(claiming.pause, None if paused else claiming.PAUSE_ENDS)


def hold(slot, ms):
    slot.queue.ask(claiming.pause, ms)


def held_until(slot):
    return float(slot.redis.hget(slot.keys.consumers(0), PAUSED))


def plan(slot, mark, run=1):
    slot.queue.ask(claiming.plan, [0], "a", run, mark)


def is_paused(slot):
    return slot.redis.hexists(slot.keys.consumers(0), PAUSED)


def why_nothing(slot, mark=""):
    return slot.claim_reply(mark=mark)[1]


def kept(slot):
    """Everything in the slot except the headers."""
    consumers = slot.keys.consumers(0)
    return {key: value for key, value in slot.dump().items() if key != consumers}


def due(slot, **options):
    found = slot.queue.ask(reading.due, [0], "a", **options)[0]
    return found.due, found.held


def test_a_mark_is_set_and_removed_as_often_as_asked(slot):
    for paused in (True, True, False, False, True):
        pause(slot, paused)
        assert is_paused(slot) == paused
    pause(slot, False)
    assert slot.redis.exists(slot.keys.consumers(0)) == 0


def test_a_paused_slot_makes_no_claim_and_writes_no_record(slot):
    slot.put_due(numbered(3))
    slot.put_waiting({b"over": 5_003})
    slot.claim("b", limit=1, lease_ms=0)
    pause(slot)
    before = kept(slot)
    for consumer in ("a", "b"):
        claim = slot.claim(consumer, seq=2)
        assert (claim.contents, claim.forgotten) == ([], False)
        assert slot.claim_reply(consumer, seq=2)[:3] == [0, TOPIC_PAUSED, 0]
    assert kept(slot) == before


def test_after_a_resume_claims_are_made(slot):
    slot.put_due(numbered(3))
    pause(slot)
    assert why_nothing(slot) == TOPIC_PAUSED
    pause(slot, False)
    assert slot.claimed(seq=2) == numbered(3)
    assert slot.commit(seq=2).committed == 3


def test_a_planned_claim_is_not_made_and_its_plan_ends(slot):
    """Else another read of the batch would find messages where the first found none."""
    slot.put_due(numbered(3))
    plan(slot, "m1")
    pause(slot)
    assert slot.claimed(mark="m1") == []
    assert why_nothing(slot, mark="m1") == TOPIC_PAUSED  # although the plan is gone by now
    pause(slot, False)
    assert slot.claimed(mark="m1") == []
    assert why_nothing(slot, mark="m1") == PLAN_FORGOTTEN
    plan(slot, "m2")
    assert slot.claimed(seq=2, mark="m2") == numbered(3)


def test_a_plan_that_met_no_pause_goes_on(slot):
    slot.put_due(numbered(3))
    plan(slot, "m1")
    pause(slot)
    pause(slot, False)
    assert slot.claimed(mark="m1") == numbered(3)


def test_a_claim_whose_plan_is_forgotten_changes_nothing_in_a_paused_slot(slot):
    slot.put_due(numbered(3))
    plan(slot, "m2")
    pause(slot)
    before = slot.dump()
    assert slot.claim(mark="m1").contents == []
    assert slot.dump() == before
    pause(slot, False)
    assert slot.claimed(mark="m2") == numbered(3)


def test_planning_in_a_paused_slot_leaves_a_mark_that_makes_no_claim(slot):
    slot.put_due(numbered(3))
    pause(slot)
    plan(slot, "m1")
    assert slot.claimed(mark="m1") == []
    assert is_paused(slot)


def test_a_claim_that_exists_is_read_replayed_renewed_and_committed(slot):
    slot.put_due(numbered(4))
    plan(slot, "m1")
    slot.claim(mark="m1", limit=2)
    pause(slot)
    assert slot.claimed(mark="m1", limit=2) == numbered(2)
    assert slot.claimed(mark="m1", ordinal=1) == []
    assert slot.claimed(mark="m1", limit=2) == numbered(2)  # although its plan has ended
    assert slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS) == {0: 1}
    assert len(slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)) == 1
    assert slot.claimed(run=2, replay_only=True) == numbered(2)
    assert slot.rollback(numbered(1), claim_id="a:1:0:2") == (1, 0)
    assert slot.commit(run=2).committed == 1
    assert slot.queue.figures().store.count == 3


def test_messages_are_given_back_and_expire(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1)
    slot.claim("b", limit=1, lease_ms=0)
    pause(slot)
    assert slot.queue.ask(returning.give_back, [0], "a", 1) == 1
    assert slot.queue.expire() == 1
    assert is_paused(slot)
    assert due(slot) == (0, 2)


def test_nobody_forgets_the_pause_with_the_consumers(slot):
    slot.claim("a")
    pause(slot)
    slot.commit("a")
    slot.redis.hset(slot.keys.consumers(0), "a", "1 1 1 0 1")
    slot.queue.expire()
    assert slot.redis.hkeys(slot.keys.consumers(0)) == [PAUSED]


def test_what_is_refused_in_a_running_slot_is_refused_in_a_paused_one(slot):
    slot.put_due(numbered(2))
    slot.claim(run=2, seq=3, lease_ms=0)
    slot.queue.expire()
    slot.commit(run=2, seq=2)
    pause(slot)
    before = slot.dump()
    with pytest.raises(Fenced):
        slot.claim(run=1, seq=4)
    with pytest.raises(AlreadyCommitted):
        slot.claim(run=2, seq=2)
    with pytest.raises(LeaseLost):
        slot.claim(run=2, seq=3)
    with pytest.raises(LeaseLost):
        slot.claim(run=2, seq=4, replay_only=True)
    assert slot.dump() == before


def test_a_claim_that_is_not_made_bars_older_runs(slot):
    pause(slot)
    slot.claim(run=2)
    with pytest.raises(Fenced):
        slot.claim(run=1)


def test_a_pause_takes_no_epoch(new_slot):
    slot = new_slot(exclusive=True)
    slot.claim("b", epoch=1)
    slot.put_due(numbered(2))
    pause(slot)
    assert slot.claimed("a", epoch=5) == []
    with pytest.raises(ExclusiveSlot):
        slot.claim("a")
    pause(slot, False)
    assert slot.claimed("b", seq=2, epoch=3) == numbered(2)


def test_all_that_is_due_in_a_paused_slot_is_held_back(slot):
    slot.put_due(numbered(3))
    slot.claim("b", limit=1, lease_ms=0)
    slot.put_waiting({b"over": 5_003})
    assert due(slot) == (4, 0)
    pause(slot)
    assert due(slot) == (0, 4)
    assert due(slot, due_before_ms=1001) == (0, 2)
    pause(slot, False)
    assert due(slot) == (4, 0)


def test_consumers_are_listed_without_the_mark(slot):
    slot.claim("a")
    pause(slot)
    assert [seen.consumer for seen in overview_of(slot.queue).consumers] == ["a"]


def test_each_group_has_marks_of_its_own(broker):
    broker.create("T", "FixedTime", 2, groups=("", "g"))
    default, group = broker.queue("T"), broker.queue("T", group="g")
    group.ask(claiming.pause, None)
    hashes = [q.keys.consumers(slot) for q in (default, group) for slot in (0, 1)]
    marked = [broker.server.client.hexists(key, PAUSED) for key in hashes]
    assert marked == [False, False, True, True]


def test_a_paused_slot_needs_to_know_no_other_claims(slot):
    slot.put_due(numbered(3))
    slot.claim("b", limit=1)
    slot.put_due([b"new"])
    pause(slot)
    assert slot.claim_reply("a")[:2] == [0, TOPIC_PAUSED]
    pause(slot, False)
    assert slot.claim_reply("a") == [-1, b"b:1:0"]


def test_a_paused_slot_gives_back_what_expired_and_takes_it_after_the_resume(slot):
    slot.put_due(numbered(2))
    slot.claim("b", limit=1, lease_ms=0)
    pause(slot)
    assert slot.give_back_expired("a") == 1
    assert slot.claimed("a") == []
    pause(slot, False)
    assert [slot.claimed("a", seq=seq) for seq in (2, 3)] == [[one] for one in numbered(2)]


def test_a_hold_lasts_as_long_as_asked_and_then_claims_are_made(slot):
    slot.put_due(numbered(3))
    before = slot.now_ms()
    hold(slot, LONG_MS)
    assert before + LONG_MS <= held_until(slot) <= slot.now_ms() + LONG_MS
    assert why_nothing(slot) == TOPIC_PAUSED
    found = slot.queue.ask(reading.due, [0], "a")[0]
    assert (found.due, found.held) == (0, 3)
    slot.redis.hset(slot.keys.consumers(0), PAUSED, slot.now_ms())  # as when the time has passed
    assert due(slot) == (3, 0)
    assert len(slot.claim().contents) == 3


def test_a_reader_looks_again_at_the_end_of_a_hold_but_not_of_a_pause(slot):
    slot.put_due(numbered(1))
    hold(slot, LONG_MS)
    assert LONG_MS / 2 < slot.queue.ask(reading.due, [0], "a")[0].next_ms <= LONG_MS
    pause(slot)
    assert slot.queue.ask(reading.due, [0], "a")[0].next_ms is None


def test_the_longer_hold_stays_and_so_does_a_pause(slot):
    hold(slot, LONG_MS)
    until_ms = held_until(slot)
    hold(slot, 1000)
    assert held_until(slot) == until_ms
    hold(slot, 2 * LONG_MS)
    assert held_until(slot) > until_ms
    pause(slot)
    hold(slot, 1)
    assert held_until(slot) == float("inf")
    pause(slot, False)
    assert not is_paused(slot)


def test_the_end_of_a_pause_ends_no_hold_unless_that_is_meant(slot):
    slot.queue.ask(claiming.pause, claiming.PAUSE_ENDS)
    assert not is_paused(slot)
    hold(slot, LONG_MS)
    slot.queue.ask(claiming.pause, claiming.PAUSE_ENDS)
    assert slot.now_ms() < held_until(slot) < float("inf")
    slot.queue.ask(claiming.pause, claiming.HOLD_ENDS)
    assert not is_paused(slot)
    pause(slot)
    hold(slot, 0)
    slot.queue.ask(claiming.pause, claiming.HOLD_ENDS)
    assert held_until(slot) == float("inf")
    slot.queue.ask(claiming.pause, claiming.PAUSE_ENDS)
    assert not is_paused(slot)


def test_figures_tell_until_when_a_slot_is_held(slot):
    assert overview_of(slot.queue).held_until_ms is None
    hold(slot, LONG_MS)
    assert overview_of(slot.queue).held_until_ms == held_until(slot)
    pause(slot)
    assert overview_of(slot.queue).held_until_ms is None


def test_a_slot_that_is_paused_hides_no_hold_of_another(broker):
    broker.create("T", "FixedTime", 2)
    queue = broker.queue("T")
    queue.ask(claiming.pause, LONG_MS)
    broker.server.command("HSET", queue.keys.consumers(0), PAUSED, "inf")
    assert overview_of(queue).held_until_ms > queue.now_ms()
