"""Claims of a version before 0.2 are given back: one prepare queue a slot, records with stamps."""

import pytest

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol import returning

from ..seeding import FAR_MS, numbered

STAMP = 1_763_739_000  # seconds


def put_old(slot, name, stamp, scores, first, version=2):
    """Writes a claim as that version kept it.

    scores: content -> retries left and rank; first: the scores in the store, by rank, as texts.
    """
    prepared = {
        content: stamp * 1000 + left + rank / 2048 for content, (left, rank) in scores.items()
    }
    if prepared:
        slot.redis.zadd(slot.keys.old_prepare(0), prepared)
    if first:
        slot.redis.hset(slot.keys.old_first(0), name, " ".join(first))
    fields = [version, stamp if first else 0, 1, FAR_MS, len(first), 0]
    fields += [stamp * 1000 + 7, 0] if version == 2 else []
    slot.redis.hset(slot.keys.claims(0), name, " ".join(map(str, fields)))
    slot.count("accepted", len(scores))


def upgrade(slot):
    return slot.queue.ask(returning.upgrade)


def call(slot):
    """One call of the script, which the queue repeats while more remains."""
    keys = slot.queue.queues.keys_of(0, "store claims stats old_prepare old_first")
    return slot.queue.server.call("upgrade", keys, [])


def old_keys(slot):
    return slot.redis.exists(slot.keys.old_prepare(0), slot.keys.old_first(0))


@pytest.mark.parametrize("version", [1, 2])
def test_all_that_a_claim_holds_is_in_the_store_as_if_nobody_had_got_it(slot, version):
    scores = {b"retried": (4, 0), b"first": (16, 1), b"second": (16, 2)}
    put_old(slot, "a:1:0", STAMP, scores, ["5", "1000", "2000"], version)
    assert upgrade(slot) == 3
    assert slot.store == {b"retried": 5, b"first": 1000, b"second": 2000}
    assert slot.records == {}
    assert not old_keys(slot)
    assert slot.counters["rolledBack"] == 3
    assert slot.claim().retries_left == [4, 16, 16]


def test_large_scores_and_late_ranks_come_back_exactly(new_slot):
    slot = new_slot("Priority")
    first = [str(2**53 - rank) for rank in range(2048)]
    scores = {content: (16, rank) for rank, content in enumerate(numbered(2048))}
    put_old(slot, "a:1:0", STAMP, scores, first)
    assert upgrade(slot) == 2048
    assert slot.store == {content: 2**53 - rank for rank, content in enumerate(numbered(2048))}
    assert slot.claimed() == numbered(2048)


def test_messages_that_were_rolled_back_out_of_a_claim_do_not_move_the_others(slot):
    scores = {b"one": (16, 1), b"three": (16, 3)}
    put_old(slot, "a:1:0", STAMP, scores, ["1000", "1001", "1002", "1003"])
    upgrade(slot)
    assert slot.store == {b"one": 1001, b"three": 1003}


def test_what_a_replay_had_charged_is_given_back_as_well(slot):
    put_old(slot, "a:1:0", STAMP, {b"m": (14, 0), b"r": (0, 1)}, ["1000", "3"])
    upgrade(slot)
    assert slot.store == {b"m": 1000, b"r": 3}


def test_claims_of_several_consumers_keep_apart(slot):
    put_old(slot, "a:1:0", STAMP, {b"a0": (16, 0), b"a1": (16, 1)}, ["1000", "1001"])
    put_old(slot, "b@g:7:15", STAMP + 1, {b"b0": (2, 0)}, ["3"])
    put_old(slot, "c:1:0", STAMP + 2, {}, [])
    assert upgrade(slot) == 3
    assert slot.store == {b"a0": 1000, b"a1": 1001, b"b0": 3}
    assert slot.records == {}


def test_messages_without_a_record_come_back_as_retries(slot):
    """Where first scores are missing, what is known of a message is its retries left."""
    put_old(slot, "a:1:0", STAMP, {b"known": (16, 0)}, ["1000"])
    orphans = {b"four": (STAMP + 9) * 1000 + 4, b"none": (STAMP + 9) * 1000 + 1 / 2048}
    slot.redis.zadd(slot.keys.old_prepare(0), orphans | {b"full": (STAMP + 9) * 1000 + 16})
    slot.count("accepted", 3)
    assert upgrade(slot) == 4
    assert slot.store == {b"known": 1000, b"four": 5, b"none": 1, b"full": 16}


def test_a_copy_sent_again_meanwhile_wins(slot):
    put_old(slot, "a:1:0", STAMP, {b"m": (16, 0), b"n": (16, 1)}, ["1000", "1001"])
    slot.queue.send([b"m"], fixed_time=7000)
    assert upgrade(slot) == 2
    assert slot.store == {b"m": 7000, b"n": 1001}
    assert slot.counters["merged"] == 1


def test_until_then_scripts_refuse_the_records_and_change_nothing(slot):
    put_old(slot, "a:1:0", STAMP, {b"m": (16, 0)}, ["1000"])
    before = slot.dump()
    with pytest.raises(ScriptFailed, match=r"another version of rmq-spark.* rmq upgrade"):
        slot.claim("b")
    assert slot.dump() == before
    upgrade(slot)
    assert slot.claimed("b") == [b"m"]


def test_claims_of_this_version_stay(slot):
    slot.put_due(numbered(2))
    slot.claim("new")
    before, held = slot.records, slot.held("new:1:0")
    put_old(slot, "old:1:0", STAMP, {b"m": (16, 0)}, ["500"])
    assert upgrade(slot) == 1
    assert slot.records == before
    assert slot.held("new:1:0") == held
    assert slot.store == {b"m": 500}


def test_a_slot_without_such_claims_is_left_as_it_is(slot):
    slot.put_due(numbered(3))
    slot.claim(limit=1)
    before = slot.dump()
    assert upgrade(slot) == 0
    assert slot.dump() == before


def test_a_second_time_changes_nothing(slot):
    put_old(slot, "a:1:0", STAMP, {b"m": (16, 0)}, ["1000"])
    upgrade(slot)
    before = slot.dump()
    assert upgrade(slot) == 0
    assert slot.dump() == before


def test_a_call_gives_back_2048_messages_and_the_queue_all(slot):
    contents = numbered(5000)
    for ordinal in range(5):
        part = contents[1000 * ordinal : 1000 * (ordinal + 1)]
        scores = {content: (16, rank) for rank, content in enumerate(part)}
        first = [str(10**6 + 1000 * ordinal + rank) for rank in range(1000)]
        put_old(slot, f"a:1:{ordinal}", STAMP + ordinal, scores, first)
    assert call(slot) == [2048, 1]
    assert slot.redis.hlen(slot.keys.claims(0)) == 5
    assert upgrade(slot) == 2952
    assert slot.store == {content: 10**6 + rank for rank, content in enumerate(contents)}
    assert slot.records == {}
    assert not old_keys(slot)


def test_exactly_2048_messages_need_one_call(slot):
    scores = {content: (16, rank) for rank, content in enumerate(numbered(2048))}
    put_old(slot, "a:1:0", STAMP, scores, [str(1000 + rank) for rank in range(2048)])
    assert call(slot) == [2048, 0]


def test_all_slots_are_upgraded(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    for slot in (1, 3):
        broker.server.client.zadd(queue.keys.old_prepare(slot), {b"m%d" % slot: STAMP * 1000 + 16})
        broker.server.client.hset(queue.keys.old_first(slot), "a:1:0", "1000")
        broker.server.client.hset(
            queue.keys.claims(slot), "a:1:0", f"2 {STAMP} 1 {FAR_MS} 1 0 {STAMP}000 0"
        )
    assert queue.ask(returning.upgrade) == 2
    assert broker.server.client.zscore(queue.keys.store(3), b"m3") == 1000
