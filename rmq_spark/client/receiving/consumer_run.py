"""The run of a reader: how it begins, and the calls that it makes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rmq_spark.client.administration import Administration
from rmq_spark.client.ownership import Ownership, ownership_of
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption, RmqError, quoted
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.protocol import claiming, reading, returning
from rmq_spark.protocol.calls import CALLS_A_PIPELINE
from rmq_spark.protocol.claims import Claim, ClaimRequest, CommitResult, SlotDue
from rmq_spark.protocol.names import ScopedName, claim_name
from rmq_spark.protocol.packing import chunks
from rmq_spark.topics.definition import refuse_exclusive
from rmq_spark.topics.keys import ACCEPTED_NAME, consumer_key, is_name

# At every so many-th look, slots of Priority topics come in turn, so that none starves.
IN_TURN_EVERY = 8


@dataclass(frozen=True, eq=False)
class ConsumerRun:
    """A run of a consumer in plain Python.

    run: its number among all runs of that name. last_seq: the highest number of a batch that
    earlier runs have claimed. A batch has one claim in each of its slots.
    """

    name: str
    run: int
    last_seq: int
    lease_ms: int
    ownership: Ownership

    def claim(
        self,
        queue: Queue,
        requests: Sequence[ClaimRequest],
        seq: int,
        epochs: Mapping[int, int | None],
    ) -> list[Claim]:
        """Make the claims of a batch. All methods raise Fenced if another run has taken over."""
        terms = claiming.Claiming(self.name, self.run, seq, self.lease_ms, epochs=epochs)
        return queue.ask(claiming.claim, requests, terms)

    def commit(self, queue: Queue, seqs: Mapping[int, int]) -> CommitResult:
        """Commit a batch in each slot, but no earlier one: Redis may have it again by a loss."""
        return queue.ask(
            claiming.commit,
            seqs,
            self.name,
            self.run,
            seqs,
            since={slot: seq - 1 for slot, seq in seqs.items()},
            expected={slot: [claim_name(self.name, seq, 0)] for slot, seq in seqs.items()},
        )

    def renew(self, queue: Queue, seqs: Mapping[int, int]) -> dict[int, int]:
        """Renew the leases of these batches, of one in each slot, all at once."""
        since = {slot: seq - 1 for slot, seq in seqs.items()}
        return queue.ask(claiming.renew, since, self.name, self.run, self.lease_ms, since=since)

    def mark_unread(self, queue: Queue, slots: Iterable[int], seq: int) -> None:
        """Mark a batch as not delivered, so that giving it back costs no retry."""
        queue.ask(claiming.unread, slots, self.name, self.run, seq)

    def give_back(
        self, queue: Queue, slots: Iterable[int], seq: int = 0, *, failed: bool = False
    ) -> None:
        """Give back what it holds, and refuse late claims up to a batch. failed: by an error."""
        queue.ask(returning.give_back, slots, self.name, self.run, seq, failed=failed)

    def give_back_unread(self, queue: Queue, slots: Sequence[int], seq: int) -> None:
        """Give back, at no cost, the claims of a batch that nobody has got.

        The call that makes them may still be on its way.
        """
        # A commit of no claim. From here on, Redis refuses them, so that none is overlooked.
        refused = {slot: [claim_name(self.name, seq, 0)] for slot in slots}
        queue.ask(claiming.commit, slots, self.name, self.run, seq, since=seq, expected=refused)
        self.mark_unread(queue, slots, seq)
        self.give_back(queue, slots, seq)


def highest_first(due: Iterable[SlotDue]) -> list[SlotDue]:
    """Sort slots of a Priority topic by the highest priority that waits there."""
    return sorted(due, key=lambda slot: slot.top, reverse=True)


@contextmanager
def within_rate(
    queue: Queue, requests: Sequence[ClaimRequest], *, limited: bool = True
) -> Iterator[tuple[list[ClaimRequest], list[Claim]]]:
    """Limit requests to what the topic's rate allows now, and take the permits for them.

    Yields the requests, and a list that gets their claims. The permits for messages that these
    have not found come back in the end. limited: False leaves the requests as they are.
    """
    claims: list[Claim] = []
    if queue.definition.rate is None or not (requests and limited):
        yield list(requests), claims
        return
    granted = queue.ask(claiming.grants, {request.slot: request.limit for request in requests})
    allowed = [
        replace(request, limit=permits)
        for request in requests
        if (permits := granted[request.slot][0])
    ]
    try:
        yield allowed, claims
    finally:
        used = {claim.slot: len(claim.contents) for claim in claims}
        return_permits(queue, {one.slot: one.limit - used.get(one.slot, 0) for one in allowed})


def return_permits(queue: Queue, unused: Mapping[int, int]) -> bool:
    """Return permits, by slot. Where that fails, it returns False: they come back with time.

    It often follows another error, and claims whose answer has come are not to be lost.
    """
    returned = {slot: -permits for slot, permits in unused.items() if permits}
    if returned and queue.definition.rate is not None:
        try:
            queue.server.ask_once(claiming.grants(queue.queues, returned))
        except RmqError:
            return False
    return True


def begin_run(
    queue: Queue, name: str, lease_ms: int, ensemble: EnsembleOptions | None
) -> ConsumerRun:
    """Take over a name: older runs are barred, and what they hold is given back."""
    if not is_name(name):
        raise InvalidOption(
            f"The consumer name {quoted(name)} is not accepted. Accepted: {ACCEPTED_NAME}"
        )
    if ensemble is None:
        refuse_exclusive(queue.definition)
    known_run = max(header.run for header in queue.ask(reading.headers, name))
    topic, key, forget_ms = queue.keys.topic, _key_of(queue, name), returning.FORGET_CONSUMERS_MS
    # A later start needs the number no more: it takes Redis' time, or one more than the headers'.
    run = queue.server.ask(claiming.open_run(key, topic, known_run, forget_ms=forget_ms))
    queue.ask(returning.give_back, queue.slots, name, run)
    # Read only now: older runs of this name could claim until give_back barred them.
    headers = queue.ask(reading.headers, name)
    last_seq = max(max(header.last_seq, header.settled) for header in headers)
    ownership = ownership_of(queue, name, ensemble)
    try:
        if ownership.exclusive and not queue.definition.exclusive:
            # Only now that ZooKeeper has answered: others without it are refused from here on.
            administration = Administration(queue.server, key_prefix=queue.key_prefix)
            administration.alter(queue.definition.name, exclusive=True)
        ownership.wait_for_slots()
    except BaseException:
        ownership.stop()
        raise
    return ConsumerRun(name, run, last_seq, lease_ms, ownership)


def forget_consumer(queue: Queue, name: str) -> None:
    for part in chunks(queue.slots, CALLS_A_PIPELINE):
        queue.server.commands([("HDEL", queue.keys.consumers(slot), name) for slot in part])
    queue.server.command("UNLINK", _key_of(queue, name))


def _key_of(queue: Queue, name: str) -> str:
    scoped = ScopedName(queue.keys.topic, queue.keys.group, name)
    return consumer_key(str(scoped), queue.key_prefix)
