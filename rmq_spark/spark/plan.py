"""From what is due to claims: pure, without a server."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmq_spark.queue.claims import CLAIMS_A_BATCH, MESSAGES_A_CLAIM

MESSAGES_A_SLOT = MESSAGES_A_CLAIM * CLAIMS_A_BATCH


@dataclass(frozen=True)
class PlannedClaim:
    """One claim of a batch: the j-th of its slot, for up to ``limit`` messages."""

    slot: int
    seq: int
    j: int
    limit: int


def allocate(due: Mapping[int, int], limit: int | None, seq: int) -> dict[int, int]:
    """How many messages each slot gives to the batch ``seq``.

    due: messages by slot. limit: in all; None for no limit. Slots share it evenly, what one does
    not need goes to the others, and what cannot be shared evenly goes round with seq. Slots that
    give nothing are left out.
    """
    wanted = {slot: min(count, MESSAGES_A_SLOT) for slot, count in due.items() if count > 0}
    if limit is None or sum(wanted.values()) <= limit:
        return wanted
    quotas: dict[int, int] = {}
    left = limit
    by_need = sorted(wanted, key=lambda slot: (wanted[slot], slot))
    for at, slot in enumerate(by_need):
        share, extra = divmod(left, len(by_need) - at)
        if wanted[slot] > share:
            hungry = sorted(by_need[at:])
            quotas |= dict.fromkeys(hungry, share)
            for step in range(extra):
                quotas[hungry[(seq * extra + step) % len(hungry)]] += 1
            break
        quotas[slot] = wanted[slot]
        left -= wanted[slot]
    return {slot: count for slot, count in quotas.items() if count}


def claims_of(quotas: Mapping[int, int], seq: int) -> list[PlannedClaim]:
    """The claims that take these quotas: full ones first, in each slot."""
    return [
        PlannedClaim(slot, seq, j, min(MESSAGES_A_CLAIM, count - j * MESSAGES_A_CLAIM))
        for slot, count in quotas.items()
        for j in range(-(-count // MESSAGES_A_CLAIM))
    ]


def share_out(claims: Iterable[PlannedClaim], partitions: int) -> list[list[PlannedClaim]]:
    """Groups claims into at most ``partitions`` lists of about equal size, whole slots each.

    The claims of one slot stay together and in order: messages of one slotBasis must not be read
    by two tasks at once.
    """
    by_slot: dict[int, list[PlannedClaim]] = {}
    for claim in sorted(claims, key=lambda claim: (claim.slot, claim.seq, claim.j)):
        by_slot.setdefault(claim.slot, []).append(claim)
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
