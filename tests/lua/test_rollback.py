"""Single messages of a claim, rolled back."""

from dataclasses import replace

import pytest

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.verdicts import Ending

from ..seeding import FAR_MS, LONG_MS, numbered, suspect


def test_a_message_goes_back_with_the_retries_it_has_left(slot):
    slot.put({b"first": 1000, b"retried": 5, b"kept": 2000})
    slot.claim()
    assert slot.rollback([b"first", b"retried"]) == (2, 0)
    assert slot.store == {b"first": 16, b"retried": 4}
    assert set(slot.prepare) == {b"kept"}
    assert slot.counters["rolledBack"] == 2


def test_the_last_delivery_goes_to_the_dead_queue(new_slot):
    slot = new_slot(max_retries=1)
    slot.put_due([b"m"])
    for seq, store, dead in ((1, {b"m": 1}, set()), (2, {}, {b"m"})):
        slot.claim(seq=seq)
        slot.rollback([b"m"], f"a:{seq}:0:1")
        assert slot.store == store
        assert set(slot.dead) == dead
    assert slot.counters["dead"] == 1


@pytest.mark.parametrize(("max_retries", "deliveries"), [(0, 1), (3, 4), (16, 17)])
def test_a_message_is_delivered_once_and_max_retries_times(new_slot, max_retries, deliveries):
    slot = new_slot(max_retries=max_retries)
    slot.put_due([b"m"])
    counted = []
    for seq in range(1, deliveries + 1):
        claim = slot.claim(seq=seq)
        counted += [m.delivery_count for m in claim.messages(slot.queue.definition)]
        slot.rollback([b"m"], claim.claim_id)
    assert counted == list(range(1, deliveries + 1))
    assert slot.store == {}
    assert set(slot.dead) == {b"m"}


def test_a_message_without_retries_is_buried_even_with_a_delay(new_slot):
    slot = new_slot(max_retries=0)
    slot.put_due([b"m"])
    slot.claim()
    before = slot.now_ms()
    slot.rollback([b"m"], delay_ms=LONG_MS)
    assert slot.retry == {}
    assert before <= slot.dead[b"m"] <= slot.now_ms()


def test_a_delay_puts_it_into_the_retry_queue_until_the_next_full_second(slot):
    slot.put_due([b"m"])
    slot.claim()
    before = slot.now_ms()
    slot.rollback([b"m"], delay_ms=2500)
    due, left = divmod(slot.retry[b"m"], 1000)
    assert left == 16
    assert before + 2500 <= due * 1000 < slot.now_ms() + 3500
    assert slot.store == {}


def test_no_delay_overrides_the_topics_backoff(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put_due([b"m"])
    slot.claim()
    slot.rollback([b"m"], delay_ms=0)
    assert slot.store == {b"m": 16}


def test_each_retry_waits_its_own_step_of_the_backoff_and_the_last_repeats(new_slot):
    slot = new_slot(retry_backoff="100s 200s 300s")
    waits = []
    slot.put({b"m": 1000})
    for seq in range(1, 6):
        slot.claim(seq=seq)
        before = slot.now_ms()
        slot.rollback([b"m"], f"a:{seq}:0:1")
        score = slot.retry[b"m"]
        waits.append(round((score // 1000 * 1000 - before) / 100_000))
        slot.redis.zadd(slot.keys.retry(0), {b"m": 1000 + score % 1000})
    assert waits == [1, 2, 3, 3, 3]


def waits_of(slot, before):
    """The waits of what is in the retry queue, in steps of a thousandth of the backoff."""
    return [(score // 1000 * 1000 - before) / 1_000_000 for score in slot.retry.values()]


@pytest.mark.parametrize("jitter", [1, 0.25])
def test_jitter_spreads_the_retries_of_one_moment(new_slot, jitter):
    """The share of each message comes from its content, so the figures are always the same."""
    slot = new_slot(retry_backoff="1000000s, 2000000s", retry_jitter=jitter)
    contents = numbered(1000)
    slot.put_due(contents)
    for seq, step in ((1, 1), (2, 2)):
        slot.claim(seq=seq)
        before = slot.now_ms()
        slot.rollback(contents, f"a:{seq}:0:1")
        shares = sorted((1 - wait / 1000 / step) / jitter for wait in waits_of(slot, before))
        assert -0.001 < shares[0] < 0.01
        assert 0.99 < shares[-1] < 1
        # As evenly as numbers by chance: in each tenth about a tenth of them.
        tenths = [sum(n <= 10 * share < n + 1 for share in shares) for n in range(10)]
        assert all(70 <= n <= 130 for n in tenths), tenths
        for content, score in slot.retry.items():
            slot.redis.zadd(slot.keys.retry(0), {content: 1000 + score % 1000})


def test_jitter_leaves_a_wait_that_is_asked_for_alone(new_slot):
    slot = new_slot(retry_backoff="1h", retry_jitter=1)
    slot.put_due([b"m"])
    slot.claim()
    before = slot.now_ms()
    slot.rollback([b"m"], delay_ms=LONG_MS)
    assert slot.retry[b"m"] >= before + LONG_MS


def test_jitter_without_a_backoff_is_no_wait(new_slot):
    slot = new_slot(retry_jitter=1)
    slot.put_due([b"m"])
    slot.claim()
    slot.rollback([b"m"])
    assert slot.store == {b"m": 16}


def test_a_message_sent_again_with_more_retries_than_the_topic_has_waits_the_first_step(new_slot):
    slot = new_slot(max_retries=2, retry_backoff="100s 200s")
    slot.put({b"m": 16})
    slot.claim()
    before = slot.now_ms()
    slot.rollback([b"m"])
    assert round((slot.retry[b"m"] - before) / 100_000) == 1


def test_a_copy_sent_again_meanwhile_wins(slot):
    slot.put_due(numbered(2))
    slot.claim()
    slot.queue.send(numbered(1), fixed_time=7000)
    assert slot.rollback(numbered(2)) == (2, 0)
    assert slot.store == {numbered(2)[0]: 7000, numbered(2)[1]: 16}
    assert slot.counters["merged"] == 1


def test_with_a_delay_the_copy_gives_way_to_one_sent_again(slot):
    slot.put_due(numbered(3))
    slot.claim()
    slot.queue.send([numbered(3)[1]], fixed_time=7000)
    assert slot.rollback(numbered(3), delay_ms=LONG_MS) == (3, 0)
    assert slot.store == {numbered(3)[1]: 7000}
    assert slot.waiting == {numbered(3)[0]: 16, numbered(3)[2]: 16}
    assert slot.counters["merged"] == 1


def test_a_stale_run_is_left_alone(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.claim(run=2)
    before = slot.dump()
    assert slot.rollback([b"m"], "a:1:0:1") == (0, 1)
    assert slot.dump() == before
    assert slot.rollback([b"m"], "a:1:0:2") == (1, 0)


@pytest.mark.parametrize("claim_id", ["a:1:1:1", "a:2:0:1", "b:1:0:1", "a:1:0:0"])
def test_another_claim_is_left_alone(slot, claim_id):
    slot.put_due([b"m"])
    slot.claim()
    assert slot.rollback([b"m"], claim_id) == (0, 1)
    assert set(slot.prepare) == {b"m"}


def test_what_the_claim_does_not_hold_is_left_alone(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1)
    slot.claim("b")
    slot.put_due([b"stored"])
    wanted = [*numbered(2), b"stored", b"unknown"]
    assert slot.rollback(wanted) == (1, 3)
    assert slot.retries_left == {numbered(2)[1]: 16}
    assert slot.store == {b"stored": 1000, numbered(1)[0]: 16}


def test_a_content_named_twice_goes_back_once(slot):
    slot.put_due([b"m"])
    slot.claim()
    assert slot.rollback([b"m", b"m"]) == (1, 1)
    assert slot.counters["rolledBack"] == 1


def test_a_second_rollback_changes_nothing(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.rollback([b"m"])
    before = slot.dump()
    assert slot.rollback([b"m"]) == (0, 1)
    assert slot.dump() == before


def test_an_empty_claim_holds_nothing_to_roll_back(slot):
    slot.claim()
    slot.put_due([b"m"])
    assert slot.rollback([b"m"]) == (0, 1)
    assert slot.rollback([]) == (0, 0)


def test_many_messages_and_some_that_wait(slot):
    contents = numbered(4096)
    slot.put_due(contents)
    slot.claim(ordinal=0, limit=2048)
    slot.claim(ordinal=1)
    assert slot.rollback(contents, "a:1:1:1", delay_ms=LONG_MS) == (2048, 2048)
    assert sorted(slot.retry) == contents[2048:]
    assert slot.rollback(contents) == (2048, 2048)
    assert sorted(slot.store) == contents[:2048]


def test_all_of_a_claim_of_8192_are_rolled_back(slot):
    contents = numbered(8192)
    slot.put_due(contents)
    slot.claim()
    assert slot.rollback(contents) == (8192, 0)
    assert slot.store == dict.fromkeys(contents, 16)
    assert slot.records["a:1:0"].held == 0
    assert not slot.redis.exists(slot.keys.claim(0, "a:1:0"))


def test_the_record_tells_how_many_are_left_and_how_many_there_were(slot):
    slot.put_due(numbered(5))
    slot.claim()
    before = slot.records["a:1:0"]
    slot.rollback([*numbered(2), b"unknown"])
    assert slot.records["a:1:0"] == replace(before, held=3)
    assert before.sealed == 5


def test_a_message_of_a_replayed_claim_goes_back_with_what_the_replays_left(slot):
    slot.put({b"first": 1000, b"retried": 5, b"last": 2})
    slot.claim()
    slot.claim(run=3)
    assert slot.rollback([b"first", b"retried", b"last"], "a:1:0:3") == (3, 0)
    assert slot.store == {b"first": 15, b"retried": 3}
    assert set(slot.dead) == {b"last"}


def test_the_retries_are_those_of_the_topic_when_the_claim_was_made(new_slot):
    slot = new_slot(max_retries=3)
    slot.put_due(numbered(1))
    slot.claim()
    slot.broker.alter(slot.queue.definition.name, max_retries=9)
    slot.queue = slot.broker.queue(slot.queue.definition.name)
    assert slot.rollback(numbered(1)) == (1, 0)
    assert slot.store == {numbered(1)[0]: 3}


def test_a_burial_beside_an_older_copy_keeps_the_later_death_and_counts_once(new_slot):
    slot = new_slot(max_retries=0)
    for seq in (1, 2):
        slot.put_due([b"m"])
        slot.claim(seq=seq)
        slot.rollback([b"m"], f"a:{seq}:0:1")
        death = slot.dead[b"m"]
    assert slot.now_ms() - death < LONG_MS
    assert slot.counters["dead"] == 2
    slot.check_conservation()


def test_after_a_rollback_the_rest_is_committed(slot):
    slot.put_due(numbered(3))
    slot.claim()
    slot.rollback(numbered(1))
    result = slot.commit()
    assert (result.claimed, result.committed) == (3, 2)
    assert set(slot.store) == set(numbered(1))


@pytest.mark.parametrize("claim_id", ["", "a", "a:1:0", "a:1:0:x", ":1:0:1", "a:1:0:1:2", "a:1:0:"])
def test_a_text_that_is_no_claim_id_is_refused(slot, claim_id):
    with pytest.raises(InvalidOption, match="claimId"):
        slot.rollback([b"m"], claim_id)


@pytest.mark.parametrize("delay_ms", [-1, 2**63 - 1])
def test_a_delay_out_of_bounds_is_refused_and_nothing_moves(slot, delay_ms):
    """A wait that ends past what a score holds would take the retries left with it."""
    slot.put_due(numbered(1))
    slot.claim()
    before = slot.dump()
    with pytest.raises(InvalidOption, match=f"delay {delay_ms} ms .* 0 to 31622400000 ms"):
        slot.rollback(numbered(1), delay_ms=delay_ms)
    assert slot.dump() == before


@pytest.mark.parametrize(
    "stored", [{b"first": 1000, b"retried": 3}, dict.fromkeys([b"m", b"n"], suspect(2, 5))]
)
def test_what_nobody_got_returns_as_it_was(slot, stored):
    slot.put(stored)
    slot.claim()
    assert slot.rollback(list(stored), ending=Ending.UNREAD) == (2, 0)
    assert slot.store == stored
    assert slot.counters["rolledBack"] == 2


def test_what_was_sent_again_meanwhile_stays_as_it_was_sent(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.queue.send([b"m"], fixed_time=FAR_MS)
    assert slot.rollback([b"m"], ending=Ending.UNREAD) == (1, 0)
    assert slot.store == {b"m": FAR_MS}


def snooze_and_wait(slot, contents, claim_id):
    """Rolls back uncharged with a wait, and lets that be over."""
    assert slot.rollback(contents, claim_id, delay_ms=LONG_MS, ending=Ending.UNCHARGED).rolled_back
    for content, score in slot.scores("retry").items():
        slot.redis.zadd(slot.keys.retry(0), {content: score % 1000})


@pytest.mark.parametrize("max_retries", [0, 1, 15, 16])
def test_a_wait_without_a_charge_costs_no_retry_however_often(new_slot, max_retries):
    slot = new_slot(max_retries=max_retries)
    slot.put_due([b"m"])
    for seq in range(1, 4):
        claim = slot.claim(seq=seq)
        assert claim.retries_left == [max_retries]
        snooze_and_wait(slot, [b"m"], claim.claim_id)
        (page,) = slot.queue.pages(QueueKind.RETRY, 0)
        assert page.retries_left() == [max_retries]
    assert slot.counters["rolledBack"] == 3
    slot.check_conservation()


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((3, 3), (1, 1), (16, 16)),
        *((suspect(2, 5), 5), (suspect(4, 1), 1), (suspect(3, 17), suspect(0, 17))),
    ],
)
def test_no_charge_leaves_the_retries_and_who_survived_it_suspects_nothing(
    slot, before, after, wait
):
    """Failed before: a suspect that was snoozed kept others of its slot from being claimed."""
    slot.put({b"m": before})
    claim = slot.claim(alone=True)
    slot.rollback([b"m"], claim.claim_id, delay_ms=wait * LONG_MS, ending=Ending.UNCHARGED)
    if wait:
        assert slot.waiting == {b"m": abs(after)}
        slot.redis.zadd(slot.keys.retry(0), {b"m": abs(after)})
        claim = slot.claim(seq=2)
        slot.rollback([b"m"], claim.claim_id, ending=Ending.UNREAD)
    assert slot.store == {b"m": after}


def test_a_wait_without_a_charge_ends_in_its_second(slot):
    slot.put_due([b"m"])
    slot.claim()
    now = slot.now_ms()
    slot.rollback([b"m"], delay_ms=LONG_MS, ending=Ending.UNCHARGED)
    due = slot.scores("retry")[b"m"] // 1000 * 1000
    assert now + LONG_MS <= due <= slot.now_ms() + LONG_MS + 1000


def test_what_is_sent_again_while_it_waits_without_a_charge_is_as_it_was_sent(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.rollback([b"m"], delay_ms=LONG_MS, ending=Ending.UNCHARGED)
    slot.queue.send([b"m"], fixed_time=FAR_MS)
    assert slot.store == {b"m": FAR_MS}
    assert not slot.scores("retry")


def test_a_buried_message_dies_with_its_reason_whatever_retries_are_left(slot):
    slot.put({b"first": 1000, b"retried": 5, b"kept": 2000})
    slot.claim()
    before = slot.now_ms()
    how = {"reasons": ["Bury: no such customer"], "ending": Ending.BURY}
    assert slot.rollback([b"first", b"retried", b"unknown"], **how) == (2, 1)
    assert set(slot.dead) == {b"first", b"retried"}
    assert all(before <= died <= slot.now_ms() for died in slot.dead.values())
    assert not slot.store
    assert set(slot.prepare) == {b"kept"}
    assert (slot.counters["rolledBack"], slot.counters["dead"]) == (2, 2)
    assert slot.queue.figures().deaths == {"Bury": 2}
    slot.check_conservation()


def test_a_buried_message_leaves_a_newer_copy_alone(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.queue.send([b"m"], fixed_time=FAR_MS)
    assert slot.rollback([b"m"], ending=Ending.BURY) == (1, 0)
    assert slot.store == {b"m": FAR_MS}
    assert set(slot.dead) == {b"m"}
    slot.check_conservation()
