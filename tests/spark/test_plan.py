"""From due counts to claims and partitions: no server."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.spark.plan import MESSAGES_A_SLOT, PlannedClaim, allocate, claims_of, share_out

SLOT = st.integers(0, 63)
DUE = st.dictionaries(SLOT, st.integers(0, 3 * MESSAGES_A_SLOT), max_size=20)
LIMIT = st.none() | st.integers(1, 5 * MESSAGES_A_SLOT)
SEQ = st.integers(1, 10_000)
QUOTAS = st.dictionaries(SLOT, st.integers(1, MESSAGES_A_SLOT), max_size=20)


@given(DUE, LIMIT, SEQ)
def test_a_batch_takes_no_more_than_its_limit_and_what_is_due(due, limit, seq):
    quotas = allocate(due, limit, seq)
    takeable = {slot: min(count, MESSAGES_A_SLOT) for slot, count in due.items()}
    assert all(0 < count <= takeable[slot] for slot, count in quotas.items())
    wanted = sum(takeable.values())
    assert sum(quotas.values()) == (wanted if limit is None else min(limit, wanted))


@given(DUE)
def test_a_slot_gives_at_most_sixteen_claims_of_2048_to_a_batch(due):
    assert max(allocate(due, None, 1).values(), default=0) <= 16 * 2048


@given(st.dictionaries(SLOT, st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 30), SEQ)
def test_no_slot_starves_over_successive_batches(due, limit, seq):
    served = set()
    for later in range(len(due)):
        served |= allocate(due, limit, seq + later).keys()
    assert served == due.keys()


@given(st.dictionaries(SLOT, st.integers(1, 50), min_size=1, max_size=20), SEQ)
def test_a_limit_of_one_serves_every_slot_once_in_a_round(due, seq):
    served = Counter()
    for later in range(len(due)):
        served.update(allocate(due, 1, seq + later))
    assert served == dict.fromkeys(due, 1)


@given(DUE, LIMIT, SEQ)
def test_slots_that_want_more_than_they_get_differ_by_one_at_most(due, limit, seq):
    quotas = allocate(due, limit, seq)
    hungry = [
        quotas.get(slot, 0)
        for slot, count in due.items()
        if quotas.get(slot, 0) < min(count, MESSAGES_A_SLOT)
    ]
    assert max(hungry, default=0) - min(hungry, default=0) <= 1
    assert max(quotas.values(), default=0) <= max(
        [*hungry, *(min(due[slot], MESSAGES_A_SLOT) for slot in quotas)], default=0
    )


@given(DUE, LIMIT, SEQ)
def test_a_batch_is_empty_only_when_nothing_is_due(due, limit, seq):
    assert bool(allocate(due, limit, seq)) == any(due.values())


@given(QUOTAS, SEQ)
def test_claims_add_up_to_the_quota_and_are_numbered_from_0_to_15(quotas, seq):
    claims = claims_of(quotas, seq, dict.fromkeys(quotas))
    for slot, quota in quotas.items():
        of_slot = [claim for claim in claims if claim.slot == slot]
        assert [claim.j for claim in of_slot] == list(range(len(of_slot)))
        assert len(of_slot) <= 16
        assert all(1 <= claim.limit <= 2048 for claim in of_slot)
        assert sum(claim.limit for claim in of_slot) == quota
    assert {claim.seq for claim in claims} <= {seq}
    assert len(set(claims)) == len(claims)


@given(QUOTAS, st.integers(1, 12))
def test_one_slot_is_never_read_by_two_partitions(quotas, partitions):
    claims = claims_of(quotas, 7, dict.fromkeys(quotas))
    shares = share_out(reversed(claims), partitions)
    assert len(shares) <= partitions
    assert all(shares)
    slots = [slot for share in shares for slot in {claim.slot for claim in share}]
    assert len(slots) == len(set(slots))
    assert sorted(map(repr, (claim for share in shares for claim in share))) == sorted(
        map(repr, claims)
    )


@given(st.lists(st.tuples(SLOT, st.integers(1, 9), st.integers(0, 15)), unique=True, max_size=60))
def test_the_claims_of_a_slot_stay_in_order_also_over_several_batches(named):
    claims = [PlannedClaim(slot, seq, j, 5) for slot, seq, j in named]
    for share in share_out(claims, 3):
        for slot in {claim.slot for claim in share}:
            order = [(claim.seq, claim.j) for claim in share if claim.slot == slot]
            assert order == sorted(order)


@given(QUOTAS, st.integers(1, 12))
def test_partitions_differ_by_no_more_than_the_largest_slot(quotas, partitions):
    sizes = [
        sum(c.limit for c in share)
        for share in share_out(claims_of(quotas, 1, dict.fromkeys(quotas)), partitions)
    ]
    largest = max(quotas.values(), default=0)
    assert max(sizes, default=0) - min(sizes, default=0) <= largest


def test_a_restart_that_finds_no_claim_has_no_partition():
    assert share_out([], 8) == []
