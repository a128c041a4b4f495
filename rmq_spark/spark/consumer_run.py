"""One run of one consumer: what the driver's side of the source knows and does.

::

    new --open--> running --stop--> stopped
                  |  ^
                  settle, plan, replay: one batch after another

A run is opened by the first call that needs it. From then on its number stands in every slot's
header, and an older run of the same consumer can claim and commit nothing.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.queue.broker import Broker
from rmq_spark.queue.claims import SettledClaims, SlotDue
from rmq_spark.queue.errors import CheckpointRefused
from rmq_spark.queue.queue import Queue
from rmq_spark.queue.server import Server
from rmq_spark.queue.topic import HIGHEST_SCORE
from rmq_spark.spark.backlog import Backlog
from rmq_spark.spark.lease import LeaseTimer
from rmq_spark.spark.offsets import Offset
from rmq_spark.spark.options import DEFAULT_MOST_PARTITIONS, SourceOptions
from rmq_spark.spark.ownership import AllSlots, OwnedSlots
from rmq_spark.spark.partition_reader import Delivery, RmqPartition
from rmq_spark.spark.plan import PlannedClaim, claims_of, earliest, share_out
from rmq_spark.spark.watch import Watch

_log = logging.getLogger(__name__)

# A task takes Spark some 20 ms beside its reading; of so many messages that is a small part.
MESSAGES_A_TASK = 32_768


def open_queue(options: SourceOptions) -> Queue:
    """The queue that a source reads. Raises UnknownTopic, TopicMismatch, ServerError."""
    server = Server(options.connection, options.patience_s)
    broker = Broker(server, key_prefix=options.key_prefix)
    broker.definition(options.topic)  # a reader never creates a topic
    definition = broker.define(options.topic, options.topic_type, options.slot_amount)
    if options.ensemble is not None and not definition.exclusive:
        definition = broker.alter(options.topic, exclusive=True)
    server.warn_if_volatile()
    return Queue(server, definition, key_prefix=options.key_prefix)


class ConsumerRun:
    """The batches of one run: which are planned, which are settled."""

    def __init__(self, options: SourceOptions, queue: Queue, start: Offset, replays: bool) -> None:
        """Opens the run.

        start: where the checkpoint stands. replays: whether the first thing asked for is a batch
        that an earlier run had begun. Raises CheckpointRefused.
        """
        self._options = options
        self.consumer = start.consumer
        known_run = _checked(queue, start, replays)
        self._run = queue.open_run(start.consumer, known_run)
        self._queue = queue
        self._settled: int | None = None
        self._planned: dict[int, list[PlannedClaim]] = {}
        self._replayed: dict[tuple[int, int], list[PlannedClaim]] = {}
        self.last_planned: int | None = None  # the number of the batch that this run planned last
        self._watch = Watch(options.poll_interval_ms / 1000)
        self._epochs: Mapping[int, int | None] = {}
        self._lease = LeaseTimer(options, queue, start.consumer, self._run)
        self._ownership: AllSlots | OwnedSlots = (
            AllSlots(queue.definition)
            if options.ensemble is None
            else OwnedSlots(options.ensemble, queue, start.consumer)
        )

    # -- settling

    def settle(self, seq: int) -> SettledClaims | None:
        """Commits everything up to a batch, once. None when that was done before."""
        if self._settled is not None and seq <= self._settled:
            return None
        first = self._settled is None
        slots: Iterable[int] = self._queue.slots if first else sorted(self._lease.slots())
        settled = self._queue.commit(slots, self.consumer, self._run, seq)
        self._queue.settle(self.consumer, seq)
        self._settled = seq
        self._lease.let_go(seq)
        return settled

    # -- planning

    def plan(self, start: Offset, limit: int | None, backlog: Backlog | None) -> Offset:
        """Settles what is before start and plans the next batch; start itself if nothing is due.

        limit: messages, None for all. backlog: what an AvailableNow query has still to read, None
        for a query that goes on.
        """
        settled = self.settle(start.seq)
        own = settled if self.last_planned == start.seq else None
        if backlog is not None and own is not None:
            backlog.done(own)
        elif own is not None and not own.claimed:
            self._watch.rest()
        self._look_at_slots()
        if not self._worth_asking(backlog):
            return start
        slots = self._due(backlog)
        quotas = self._first_of(slots, limit, start.seq + 1, backlog)
        if not quotas and backlog is not None and self._has_grown():
            slots = self._due(backlog)
            quotas = self._first_of(slots, limit, start.seq + 1, backlog)
        if not quotas:
            if backlog is None:
                self._watch.found_nothing(slots)
            else:
                backlog.end()
            return start
        self._watch.found_something()
        if backlog is not None:
            backlog.begin(quotas)
        planned = start.next()
        self._planned = {planned.seq: claims_of(quotas, planned.seq, self._epochs)}
        self._replayed = {}
        self.last_planned = planned.seq
        self._lease.hold(planned.seq, quotas)
        return planned

    def wait_for_slots(self) -> None:
        """For a query that ends when it finds nothing: waits while it owns no slot."""
        if not self._epochs:
            self._ownership.wait_for_slots()

    def _has_grown(self) -> bool:
        """Whether slots came to it while it worked; for a query that is about to end."""
        before = self._epochs.keys()
        self._ownership.wait_for_slots()
        self._look_at_slots()
        return bool(self._epochs.keys() - before)

    def _look_at_slots(self) -> None:
        epochs = self._ownership.between_batches()
        if epochs.keys() != self._epochs.keys():
            self._watch.found_something()  # in new slots anything may be due
        self._epochs = epochs

    def _worth_asking(self, backlog: Backlog | None) -> bool:
        """Whether all slots are asked what is due in them; a query that goes on spares Redis."""
        if backlog is not None:
            return True
        if self._watch.rests():
            return False
        if self._watch.knows_too_little():
            return True
        self._watch.rest()
        return self._queue.any_due(tuple(self._epochs))

    def _due(self, backlog: Backlog | None) -> list[SlotDue]:
        self._queue = refreshed(self._queue)
        self._ownership.check(self._queue.definition)
        if self._queue.definition.paused:
            return []
        slots = self._queue.due(
            tuple(self._epochs),
            self.consumer,
            due_before_ms=None if backlog is None else backlog.due_before_ms,
            epochs=self._epochs,
        )
        return backlog.takeable(slots) if backlog else slots

    def _first_of(
        self, slots: list[SlotDue], limit: int | None, seq: int, backlog: Backlog | None
    ) -> dict[int, int]:
        """How many messages each slot gives: of all that are due, those that come first."""
        due = {slot.slot: slot.due for slot in slots}
        if backlog is not None:
            limit = backlog.bound(limit)
        if self._queue.definition.type.descending:
            return earliest(due, limit, seq, HIGHEST_SCORE, self._queue.counts)
        now_ms = self._queue.now_ms() if backlog is None else backlog.due_before_ms

        def of_age(slots: Sequence[int], ages: Sequence[int]) -> list[list[int]]:
            return self._queue.counts(slots, [now_ms - age for age in ages])

        return earliest(due, limit, seq, now_ms, of_age)

    # -- handing out

    def partitions(self, start: Offset, end: Offset, backlog: Backlog | None) -> list[RmqPartition]:
        """The tasks of the batches after start up to end: as planned, or made again (a restart)."""
        due_before = None if backlog is None else backlog.due_before_ms
        replay = end.seq not in self._planned
        claims = self._replay(start.seq, end.seq) if replay else self._planned[end.seq]
        delivery = Delivery(
            topic=self._queue.definition,
            consumer=self.consumer,
            run=self._run,
            due_before_ms=due_before,
            replay_only=replay,
        )
        return [RmqPartition(delivery, share) for share in share_out(claims, self._tasks(claims))]

    def _tasks(self, claims: list[PlannedClaim]) -> int:
        """How many tasks: as asked for, else so many that each is worth its start."""
        if self._options.num_partitions is not None:
            return self._options.num_partitions
        planned = sum(claim.limit for claim in claims)
        return max(1, min(DEFAULT_MOST_PARTITIONS, planned // MESSAGES_A_TASK))

    def _replay(self, seq_from: int, seq_to: int) -> list[PlannedClaim]:
        if (seq_from, seq_to) not in self._replayed:
            listed = self._queue.replay(
                self.consumer, self._run, seq_from, seq_to, self._options.lease_ms
            )
            self._replayed = {
                (seq_from, seq_to): [
                    PlannedClaim(claim.slot, claim.seq, claim.j, max(1, claim.count))
                    for claim in listed
                ]
            }
            self._lease.hold(seq_to, self._queue.slots)
        return self._replayed[seq_from, seq_to]

    # -- the end

    def stop(self, release: bool) -> None:
        """Renews no more; ``release`` gives what is in work to whoever comes first.

        Where slots are owned it stays ours for its lease: tasks of a query that ends may go on for
        a while, and what they have in work is nobody else's.
        """
        slots = sorted(self._lease.slots())
        self._lease.end()
        if release and slots and not self._ownership.exclusive:
            # The signal that ends us may have cut off a reply: a fresh connection is clean.
            server = Server(self._options.connection, patience_s=1.0)
            queue = Queue(server, self._queue.definition, key_prefix=self._queue.key_prefix)
            queue.release(slots, self.consumer, self._run)
            server.close()
        self._ownership.stop()

    def figures(self) -> dict[str, int]:
        """What a progress report tells of ownership: slotsOwned, workers; nothing without it."""
        return self._ownership.figures()


def refreshed(queue: Queue) -> Queue:
    """The same queue with the topic's definition as it is now."""
    broker = Broker(queue.server, key_prefix=queue.key_prefix)
    definition = broker.definition(queue.definition.name)
    return Queue(queue.server, definition, key_prefix=queue.key_prefix)


def _checked(queue: Queue, start: Offset, replays: bool) -> int:
    """The highest run known of a consumer. Raises CheckpointRefused for a stale checkpoint."""
    headers = queue.headers(start.consumer)
    settled = max(queue.settled(start.consumer), max(header.settled for header in headers))
    claimed = max(header.last_seq for header in headers)
    if start.seq < settled or (not replays and start.seq < claimed):
        raise CheckpointRefused(
            f"The checkpoint stands at batch {start.seq} of topic {start.topic}, but its consumer "
            f"has claimed batch {claimed} and settled batch {settled}: it was restored or copied. "
            "Going on would commit messages that nobody has read. Start with a new "
            "checkpointLocation; what is in flight comes back when its lease runs out."
        )
    return max(header.run for header in headers)
