"""Planning: from due messages to quotas of slots, to claims, and to tasks. Contacts no server."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_spark.protocol.claims import CLAIMS_A_SLOT, MESSAGES_A_CLAIM
from rmq_spark.spark.limits import share_evenly

# The most messages that a slot can give to one batch.
MESSAGES_A_SLOT = MESSAGES_A_CLAIM * CLAIMS_A_SLOT
# One message in so many of a limited batch is shared evenly, so that no slot starves behind slots
# with earlier messages. Within a slot, a claim reserves the same share for the kind of messages
# (retries or first deliveries) that comes last.
FAIR_SHARE = 8
# The leads that are counted in one round trip. At most eight trips search a span of a day in ms.
LEADS_A_ROUND = 16

# Takes slots and leads. Returns for each slot how many of its due messages stand at each lead or
# ahead of it.
Counting = Callable[[Sequence[int], Sequence[int]], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class PlannedClaim:
    """A claim of up to ``limit`` messages that a task is to make.

    seq: the batch. ordinal: the number (0 to 15) of the claim among those of the same slot and
    batch. epoch: the epoch under which the query owns the slot; None without ownership. others: the
    names of claims that probably hold messages of the slot. alone: whether the batch has no other
    claim, so that it can take a message that may end its holder.
    """

    topic: str
    slot: int
    seq: int
    ordinal: int
    limit: int
    epoch: int | None = None
    others: tuple[str, ...] = ()
    alone: bool = False


def allocate(due: Mapping[int, int], limit: int | None, turn: int) -> dict[int, int]:
    """Divide a batch evenly among slots. Returns messages by slot, all above 0.

    due: messages by slot; a slot gives at most MESSAGES_A_SLOT. limit: messages in the batch; None
    for no limit. A share that one slot does not need goes to the others. A remainder that cannot
    be divided evenly rotates with ``turn``.
    """
    wanted = {slot: min(count, MESSAGES_A_SLOT) for slot, count in due.items()}
    return share_evenly(wanted, sum(wanted.values()) if limit is None else limit, turn)


def earliest(
    due: Mapping[int, int], limit: int | None, turn: int, first_lead: int, count: Counting
) -> dict[int, int]:
    """Divide a batch among slots so that it takes the earliest due messages of all slots.

    Returns messages by slot, all above 0. due: messages by slot; a slot gives at most
    MESSAGES_A_SLOT. limit: messages in the batch; None for no limit. One eighth of a limited batch
    is shared evenly, so that no slot starves. turn: the number of the batch among those of its
    topic.

    The lead of a message ranks it across slots: the age of its due time in ms, or its priority.
    Messages with a higher lead are delivered first. first_lead: a lead that no due message
    exceeds. Due messages that are not in the store (retries whose wait is over, claims whose lease
    has ended) come behind all others.
    """
    wanted = {slot: min(found, MESSAGES_A_SLOT) for slot, found in due.items() if found > 0}
    if limit is None or sum(wanted.values()) <= limit:
        return wanted
    quotas = _fair_quotas(wanted, limit, turn)
    ahead = _count_first(wanted, limit - sum(quotas.values()), turn, first_lead, count)
    for slot, number in ahead.items():
        quotas[slot] = min(wanted[slot], quotas.get(slot, 0) + number)
    rest = {slot: number - quotas.get(slot, 0) for slot, number in wanted.items()}
    for slot, number in allocate(rest, limit - sum(quotas.values()), turn).items():
        quotas[slot] = quotas.get(slot, 0) + number
    return {slot: number for slot, number in quotas.items() if number}


def _fair_quotas(wanted: Mapping[int, int], limit: int, turn: int) -> dict[int, int]:
    """Share one eighth of a batch evenly, or of a limit below eight every eighth batch."""
    if limit >= FAIR_SHARE:
        return allocate(wanted, limit // FAIR_SHARE, turn)
    # These batches rotate by their own number: the turns 8, 16, ... would always come to the same
    # eighth of the slots.
    eighth, others = divmod(turn, FAIR_SHARE)
    return {} if others else allocate(wanted, limit, eighth)


def _count_first(
    wanted: Mapping[int, int], limit: int, turn: int, first_lead: int, count: Counting
) -> dict[int, int]:
    """Count how many of the first ``limit`` messages each slot holds.

    Searches the lead of the last of them. If several slots hold messages at that lead, they share
    the rest evenly.
    """
    # Messages with leads 9, 7, 7 and 4, and a limit of 2: one message has the lead 9 or more, which
    # fits (near_enough); three have the lead 7 or more, which exceeds the limit (too_far).
    too_far, near_enough = 0, first_lead + 1
    too_many, fitting = dict(wanted), dict.fromkeys(wanted, 0)
    leads = _first_leads(first_lead)
    while leads and sum(fitting.values()) < limit:
        slots = [slot for slot in wanted if too_many[slot] > fitting[slot]]
        counted = dict(zip(slots, count(slots, leads), strict=True))
        for at, lead in enumerate(leads):
            here = {slot: min(wanted[slot], counted[slot][at]) for slot in slots}
            if sum((fitting | here).values()) <= limit:
                near_enough, fitting = lead, fitting | here
                break
            too_far, too_many = lead, too_many | here
        leads = _leads_between(too_far, near_enough)
    ties = {slot: too_many[slot] - fitting[slot] for slot in wanted}
    shared = allocate(ties, limit - sum(fitting.values()), turn)
    return {slot: fitting[slot] + shared.get(slot, 0) for slot in wanted}


def _first_leads(first_lead: int) -> list[int]:
    """Return the leads to count first, geometrically spaced. Most messages are young."""
    steps = range(1, LEADS_A_ROUND + 1)
    return sorted({round(first_lead ** (step / LEADS_A_ROUND)) for step in steps})


def _leads_between(too_far: int, near_enough: int) -> list[int]:
    steps = min(LEADS_A_ROUND, near_enough - too_far - 1)
    return [too_far + (near_enough - too_far) * step // (steps + 1) for step in range(1, steps + 1)]


def claims_of(
    topic: str,
    quotas: Mapping[int, int],
    seq: int,
    epochs: Mapping[int, int | None],
    others: Mapping[int, tuple[str, ...]] | None = None,
) -> list[PlannedClaim]:
    """Divide the quotas of a topic into claims, the full ones first in each slot.

    quotas: messages by slot. others: the names of claims that hold messages, by slot.
    """
    most, live = MESSAGES_A_CLAIM, others or {}
    return [
        PlannedClaim(
            *(topic, slot, seq, ordinal, min(most, count - ordinal * most)),
            *(epochs[slot], live.get(slot, ())),
        )
        for slot, count in quotas.items()
        for ordinal in range(-(-count // most))
    ]


def group_into_tasks(claims: Iterable[PlannedClaim], partitions: int) -> list[list[PlannedClaim]]:
    """Group claims into at most ``partitions`` lists with about the same number of messages.

    The claims of one slot stay together and in order, because two tasks must not read messages of
    one slotBasis at the same time.
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
