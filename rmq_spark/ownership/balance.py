"""The division of slots among members: pure functions, without ZooKeeper."""

from collections.abc import Collection, Iterable, Mapping

Assignment = Mapping[str, Iterable[int]]


def balance(before: Assignment, members: Collection[str], slot_amount: int) -> dict[str, list[int]]:
    """Divide all slots among members: no member has two more than another. Slots are sorted.

    before: the previous assignment, possibly of other members. A slot moves only if its member has
    left or has more than its share. The result depends only on the input, so members agree.
    """
    kept = {name: _kept(before.get(name, ()), slot_amount) for name in members}
    share, extra = divmod(slot_amount, len(kept))
    # The members with the most slots keep one more, so that as few slots as possible move.
    by_size = sorted(kept, key=lambda name: (-len(kept[name]), name))
    quotas = {name: share + (at < extra) for at, name in enumerate(by_size)}
    shares = {name: kept[name][: quotas[name]] for name in by_size}
    placed = {slot for slots in shares.values() for slot in slots}
    free = iter(slot for slot in range(slot_amount) if slot not in placed)
    for name in by_size:
        missing = quotas[name] - len(shares[name])
        shares[name] = sorted(shares[name] + [next(free) for _ in range(missing)])
    return shares


def _kept(slots: Iterable[int], slot_amount: int) -> list[int]:
    return sorted(slot for slot in set(slots) if 0 <= slot < slot_amount)
