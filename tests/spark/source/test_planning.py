"""From due counts to claims and partitions: no server."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.spark.source.planning import (
    FAIR_SHARE,
    MESSAGES_A_SLOT,
    PlannedClaim,
    allocate,
    claims_of,
    earliest,
    group_into_tasks,
)

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
def test_a_slot_gives_at_most_sixteen_claims_to_a_batch(due):
    assert max(allocate(due, None, 1).values(), default=0) <= 16 * 3072


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
    claims = claims_of("T", quotas, seq, dict.fromkeys(quotas))
    for slot, quota in quotas.items():
        of_slot = [claim for claim in claims if claim.slot == slot]
        assert [claim.ordinal for claim in of_slot] == list(range(len(of_slot)))
        assert len(of_slot) <= 16
        assert all(1 <= claim.limit <= 3072 for claim in of_slot)
        assert sum(claim.limit for claim in of_slot) == quota
    assert {claim.seq for claim in claims} <= {seq}
    assert len(set(claims)) == len(claims)


@given(QUOTAS, st.integers(1, 12))
def test_one_slot_is_never_read_by_two_partitions(quotas, partitions):
    claims = claims_of("T", quotas, 7, dict.fromkeys(quotas))
    shares = group_into_tasks(reversed(claims), partitions)
    assert len(shares) <= partitions
    assert all(shares)
    slots = [slot for share in shares for slot in {claim.slot for claim in share}]
    assert len(slots) == len(set(slots))
    assert sorted(map(repr, (claim for share in shares for claim in share))) == sorted(
        map(repr, claims)
    )


@given(st.lists(st.tuples(SLOT, st.integers(1, 9), st.integers(0, 15)), unique=True, max_size=60))
def test_the_claims_of_a_slot_stay_in_order_also_over_several_batches(named):
    claims = [PlannedClaim("T", slot, seq, ordinal, 5) for slot, seq, ordinal in named]
    for share in group_into_tasks(claims, 3):
        for slot in {claim.slot for claim in share}:
            order = [(claim.seq, claim.ordinal) for claim in share if claim.slot == slot]
            assert order == sorted(order)


@given(QUOTAS, st.integers(1, 12))
def test_partitions_differ_by_no_more_than_the_largest_slot(quotas, partitions):
    sizes = [
        sum(c.limit for c in share)
        for share in group_into_tasks(claims_of("T", quotas, 1, dict.fromkeys(quotas)), partitions)
    ]
    largest = max(quotas.values(), default=0)
    assert max(sizes, default=0) - min(sizes, default=0) <= largest


def test_a_restart_that_finds_no_claim_has_no_partition():
    assert group_into_tasks([], 8) == []


FIRST_LEAD = 2_000_000_000_000
LEADS = st.lists(st.integers(0, FIRST_LEAD) | st.integers(0, 50), max_size=60)
STORES = st.dictionaries(SLOT, LEADS, max_size=12)


class Stores:
    """Where messages stand, by slot; counted as the stores count them."""

    def __init__(self, leads):
        self.leads = {slot: sorted(of, reverse=True) for slot, of in leads.items()}
        self.rounds = 0

    def count(self, slots, leads):
        self.rounds += 1
        return [[sum(at >= lead for at in self.leads[slot]) for lead in leads] for slot in slots]

    def first_of(self, due, limit, seq):
        return earliest(due, limit, seq, FIRST_LEAD, self.count)


@given(STORES, st.integers(1, 400), SEQ)
def test_a_batch_takes_as_much_as_it_may_of_what_is_due(leads, limit, seq):
    stores = Stores(leads)
    due = {slot: len(of) for slot, of in leads.items()}
    quotas = stores.first_of(due, limit, seq)
    assert all(0 < count <= due[slot] for slot, count in quotas.items())
    assert sum(quotas.values()) == min(limit, sum(due.values()))


@given(STORES, st.integers(8, 400), SEQ)
def test_all_but_the_fair_share_are_the_first_of_all_slots(leads, limit, seq):
    stores = Stores(leads)
    due = {slot: len(of) for slot, of in leads.items()}
    quotas = stores.first_of(due, limit, seq)
    taken = sorted(
        (lead for slot, count in quotas.items() for lead in stores.leads[slot][:count]),
        reverse=True,
    )
    every = sorted((lead for of in leads.values() for lead in of), reverse=True)
    first = limit - limit // FAIR_SHARE
    assert taken[:first] == every[:first]


@pytest.mark.parametrize("slots", [2, 8, 16, 20])
@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_even_a_small_limit_serves_every_slot_in_a_while(limit, slots):
    """Slot 0 stands ahead of all. Seen: with a limit of 1, only slots 0, 8, 16, ... got a turn."""
    stores = Stores({slot: [5 if slot else 1_000] * 50 for slot in range(slots)})
    due = dict.fromkeys(range(slots), 50)
    served = set()
    for turn in range(1, 8 * slots + 1):
        served |= stores.first_of(due, limit, turn).keys()
    assert served == due.keys()


def test_what_no_store_counts_comes_last_but_comes():
    """Retries that waited, and claims that ran out."""
    stores = Stores({0: [10, 9], 1: []})
    assert stores.first_of({0: 2, 1: 5}, 3, 1) == {0: 2, 1: 1}
    assert stores.first_of({0: 0, 1: 5}, 3, 1) == {1: 3}


def test_without_a_limit_or_below_it_nothing_is_counted():
    stores = Stores({0: [10, 9], 1: [5]})
    assert stores.first_of({0: 2, 1: 1, 2: 0}, None, 1) == {0: 2, 1: 1}
    assert stores.first_of({0: 2, 1: 1, 2: 0}, 3, 1) == {0: 2, 1: 1}
    assert stores.rounds == 0


def test_a_day_is_searched_in_a_few_rounds():
    day_ms = 86_400_000
    stores = Stores({slot: [slot + 7919 * at % day_ms for at in range(500)] for slot in range(16)})
    stores.first_of(dict.fromkeys(range(16), 500), 3000, 1)
    assert stores.rounds <= 8


@given(STORES, st.integers(1, 400), SEQ, st.randoms())
def test_stores_that_change_while_they_are_counted_do_no_harm(leads, limit, seq, chance):
    stores = Stores(leads)

    def count(slots, asked):
        for slot in stores.leads:
            if stores.leads[slot] and chance.random() < 0.3:
                stores.leads[slot].pop()
            stores.leads[slot].insert(0, FIRST_LEAD)
        return stores.count(slots, asked)

    due = {slot: len(of) for slot, of in leads.items()}
    quotas = earliest(due, limit, seq, FIRST_LEAD, count)
    assert all(0 < taken <= due[slot] for slot, taken in quotas.items())
    assert sum(quotas.values()) <= limit
