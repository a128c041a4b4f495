"""From what is due to claims: pure, without a server."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_spark.protocol.claims import CLAIMS_A_BATCH, MESSAGES_A_CLAIM
from rmq_spark.spark.even_shares import share_evenly

MESSAGES_A_SLOT = MESSAGES_A_CLAIM * CLAIMS_A_BATCH
# Of a limited batch one message in so many goes round the slots, so that none starves behind those
# that have earlier ones; within a slot the claim keeps as much for retries.
FAIR_SHARE = 8
# So many places are looked at in a round trip: a span of a day in ms is searched in eight at most.
PLACES_A_ROUND = 16

# Slots and places -> by slot, how many of its due messages stand at each place or before it.
Counting = Callable[[Sequence[int], Sequence[int]], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class PlannedClaim:
    """One claim of a batch: number ``ordinal`` of its slot, for up to ``limit`` messages.

    epoch: under which the slot is owned; None where slots are nobody's.
    """

    topic: str
    slot: int
    seq: int
    ordinal: int
    limit: int
    epoch: int | None = None


def allocate(due: Mapping[int, int], limit: int | None, seq: int) -> dict[int, int]:
    """How many messages each slot gives to the batch ``seq``.

    due: messages by slot. limit: in all; None for no limit. Slots share it evenly, what one does
    not need goes to the others, and what cannot be shared evenly goes round with seq. Slots that
    give nothing are left out.
    """
    wanted = {slot: min(count, MESSAGES_A_SLOT) for slot, count in due.items()}
    return share_evenly(wanted, sum(wanted.values()) if limit is None else limit, seq)


def earliest(
    due: Mapping[int, int], limit: int | None, seq: int, first_place: int, count: Counting
) -> dict[int, int]:
    """How many messages each slot gives to the batch ``seq``, so that the first of all go first.

    A place says how far ahead a message stands, whatever its slot: the age of its due time in ms,
    or its priority. first_place: none stands ahead of it. Due messages that no store counts
    (retries that waited, claims that ran out) stand behind all others.
    """
    wanted = {slot: min(found, MESSAGES_A_SLOT) for slot, found in due.items() if found > 0}
    if limit is None or sum(wanted.values()) <= limit:
        return wanted
    quotas = allocate(wanted, _fair_share(limit, seq), seq)
    ahead = _ahead(wanted, limit - sum(quotas.values()), seq, first_place, count)
    for slot, number in ahead.items():
        quotas[slot] = min(wanted[slot], quotas.get(slot, 0) + number)
    rest = {slot: number - quotas.get(slot, 0) for slot, number in wanted.items()}
    for slot, number in allocate(rest, limit - sum(quotas.values()), seq).items():
        quotas[slot] = quotas.get(slot, 0) + number
    return {slot: number for slot, number in quotas.items() if number}


def _fair_share(limit: int, seq: int) -> int:
    """Of a small limit, every eighth batch is shared evenly as a whole."""
    return limit // FAIR_SHARE if limit >= FAIR_SHARE else limit * (seq % FAIR_SHARE == 0)


def _ahead(
    wanted: Mapping[int, int], limit: int, seq: int, first_place: int, count: Counting
) -> dict[int, int]:
    """The ``limit`` messages that stand first, by slot: the place of the last of them is searched.

    What stands at that very place in several slots is shared evenly.
    """
    behind, fits = 0, first_place + 1  # places: from behind on there are too many, from fits not
    too_many, fitting = dict(wanted), dict.fromkeys(wanted, 0)
    places = _geometric(first_place)
    while places and sum(fitting.values()) < limit:
        slots = [slot for slot in wanted if too_many[slot] > fitting[slot]]
        counted = dict(zip(slots, count(slots, places), strict=True))
        for at, place in enumerate(places):
            here = {slot: min(wanted[slot], counted[slot][at]) for slot in slots}
            if sum((fitting | here).values()) <= limit:
                fits, fitting = place, fitting | here
                break
            behind, too_many = place, too_many | here
        places = _between(behind, fits)
    ties = {slot: too_many[slot] - fitting[slot] for slot in wanted}
    shared = allocate(ties, limit - sum(fitting.values()), seq)
    return {slot: fitting[slot] + shared.get(slot, 0) for slot in wanted}


def _geometric(first_place: int) -> list[int]:
    """Places to begin with, ascending: most is due since a short while, seen over all time."""
    steps = range(1, PLACES_A_ROUND + 1)
    return sorted({round(first_place ** (step / PLACES_A_ROUND)) for step in steps})


def _between(behind: int, fits: int) -> list[int]:
    """Places between two, ascending; none when they are neighbours."""
    steps = min(PLACES_A_ROUND, fits - behind - 1)
    return [behind + (fits - behind) * step // (steps + 1) for step in range(1, steps + 1)]


def claims_of(
    topic: str, quotas: Mapping[int, int], seq: int, epochs: Mapping[int, int | None]
) -> list[PlannedClaim]:
    """The claims that take these quotas of a topic: full ones first, in each slot."""
    return [
        PlannedClaim(
            *(topic, slot, seq, ordinal, min(MESSAGES_A_CLAIM, count - ordinal * MESSAGES_A_CLAIM)),
            epochs[slot],
        )
        for slot, count in quotas.items()
        for ordinal in range(-(-count // MESSAGES_A_CLAIM))
    ]


def share_out(claims: Iterable[PlannedClaim], partitions: int) -> list[list[PlannedClaim]]:
    """Groups claims into at most ``partitions`` lists of about equal size, whole slots each.

    The claims of one slot stay together and in order: messages of one slotBasis must not be read
    by two tasks at once.
    """
    by_slot: dict[tuple[str, int], list[PlannedClaim]] = {}
    for claim in sorted(claims, key=lambda one: (one.topic, one.slot, one.seq, one.ordinal)):
        by_slot.setdefault((claim.topic, claim.slot), []).append(claim)
    largest_first = sorted(by_slot.values(), key=_size, reverse=True)
    shares: list[list[PlannedClaim]] = [[] for _ in range(min(partitions, len(largest_first)))]
    lightest = [(0, index) for index in range(len(shares))]
    for group in largest_first:
        size, index = heapq.heappop(lightest)
        shares[index] += group
        heapq.heappush(lightest, (size + _size(group), index))
    return shares


def _size(claims: list[PlannedClaim]) -> int:
    return sum(claim.limit for claim in claims)
