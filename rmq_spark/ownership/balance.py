"""How slots are shared out: pure, without ZooKeeper."""

from collections.abc import Collection, Iterable, Mapping

Assignment = Mapping[str, Iterable[int]]


def balance(before: Assignment, workers: Collection[str], slot_amount: int) -> dict[str, list[int]]:
    """The slots of each worker, sorted: all slots, and no worker has two more than another.

    before: the assignment so far, of whoever was there. A slot moves only if its worker has left,
    or has more than its share. Everybody who computes this from the same input gets the same.
    """
    kept = {name: _kept(before.get(name, ()), slot_amount) for name in workers}
    share, extra = divmod(slot_amount, len(kept))
    # Who has most keeps one more, so that as little as possible moves.
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
