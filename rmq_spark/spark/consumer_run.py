"""One run of one consumer: what the driver's side of the source knows and does.

::

    new --open--> running --stop--> stopped
                  |  ^
                  settle, plan, replay: one batch after another

A run is opened by the first call that needs it. From then on its number stands in every slot's
header, and an older run of the same consumer can claim and commit nothing.
"""

import logging
from collections.abc import Iterable

from rmq_spark.queue.broker import Broker
from rmq_spark.queue.claims import Figures, SettledClaims, SlotDue
from rmq_spark.queue.consumer import refuse_exclusive
from rmq_spark.queue.errors import CheckpointRefused
from rmq_spark.queue.queue import Queue
from rmq_spark.queue.server import Server
from rmq_spark.spark.lease import LeaseTimer
from rmq_spark.spark.offsets import Offset
from rmq_spark.spark.options import DEFAULT_MOST_PARTITIONS, SourceOptions
from rmq_spark.spark.partition_reader import Delivery, RmqPartition
from rmq_spark.spark.plan import PlannedClaim, allocate, claims_of, share_out
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
    refuse_exclusive(definition)
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
        self._lease = LeaseTimer(options, queue, start.consumer, self._run)

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

    def plan(self, start: Offset, limit: int | None, backlog: "Backlog | None") -> Offset:
        """Settles what is before start and plans the next batch; start itself if nothing is due.

        limit: messages, None for all. backlog: what an AvailableNow query has still to read, None
        for a query that goes on.
        """
        settled = self.settle(start.seq)
        own = settled if self.last_planned == start.seq else None
        if backlog is not None:
            if own is not None:
                backlog.done(own)
            limit = backlog.bound(limit)
        elif own is not None and not own.claimed:
            self._watch.rest()
        if limit == 0 or not self._worth_asking(backlog):
            return start
        slots = self._due(backlog)
        quotas = allocate({slot.slot: slot.due for slot in slots}, limit, start.seq + 1)
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
        self._planned = {planned.seq: claims_of(quotas, planned.seq, dict.fromkeys(quotas))}
        self._replayed = {}
        self.last_planned = planned.seq
        self._lease.hold(planned.seq, quotas)
        return planned

    def _worth_asking(self, backlog: "Backlog | None") -> bool:
        """Whether all slots are asked what is due in them; a query that goes on spares Redis."""
        if backlog is not None:
            return True
        if self._watch.rests():
            return False
        if self._watch.knows_too_little():
            return True
        self._watch.rest()
        return self._queue.any_due(self._queue.slots)

    def _due(self, backlog: "Backlog | None") -> list[SlotDue]:
        self._queue = refreshed(self._queue)
        if self._queue.definition.paused:
            return []
        before = None if backlog is None else backlog.due_before_ms
        slots = self._queue.due(self._queue.slots, self.consumer, due_before_ms=before)
        return backlog.takeable(slots) if backlog else slots

    # -- handing out

    def partitions(
        self, start: Offset, end: Offset, backlog: "Backlog | None"
    ) -> list[RmqPartition]:
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
        """Renews no more; ``release`` gives what is in work to whoever comes first."""
        slots = sorted(self._lease.slots())
        self._lease.end()
        if release and slots:
            # The signal that ends us may have cut off a reply: a fresh connection is clean.
            server = Server(self._options.connection, patience_s=1.0)
            queue = Queue(server, self._queue.definition, key_prefix=self._queue.key_prefix)
            queue.release(slots, self.consumer, self._run)
            server.close()


class Backlog:
    """What an AvailableNow query reads: what was due when it began.

    A slot that was planned in two batches that took nothing is not asked again: what
    looks due there is held by others, and would be planned for ever. (Once may be the reply of a
    commit that was lost and asked for again.) Messages that were rolled back count as unread.
    """

    def __init__(self, queue: Queue) -> None:
        self._topic = queue.definition.name
        self.due_before_ms = queue.now_ms()
        slots = queue.due(queue.slots, "", due_before_ms=self.due_before_ms)
        self._left = sum(slot.due for slot in slots)
        self._held = sum(slot.held for slot in slots)
        self._planned: dict[int, int] = {}
        self._empty: set[int] = set()
        self._barren: set[int] = set()
        if queue.definition.paused:
            _log.warning("rmq: topic %s is paused: nothing is read", self._topic)

    def bound(self, limit: int | None) -> int:
        """The limit of the next batch."""
        return self._left if limit is None else min(limit, self._left)

    def begin(self, quotas: dict[int, int]) -> None:
        """A batch of these messages by slot is planned."""
        self._planned = quotas
        self._left -= sum(quotas.values())

    def done(self, settled: SettledClaims) -> None:
        """That batch is done; what it did not find, or rolled back, may still be read."""
        self._left += sum(self._planned.values()) - settled.committed
        if settled.claimed or settled.moved:
            self._empty -= self._planned.keys()
        else:
            self._barren |= self._empty & self._planned.keys()
            self._empty |= self._planned.keys()

    def takeable(self, slots: list[SlotDue]) -> list[SlotDue]:
        """The slots to plan from, of what was seen of all."""
        self._held = sum(
            slot.held + (slot.due if slot.slot in self._barren else 0) for slot in slots
        )
        return [slot for slot in slots if slot.slot not in self._barren]

    def end(self) -> None:
        """Nothing more is read; what is due but cannot be had is named in a warning."""
        if self._held:
            _log.warning(
                "rmq: topic %s: ends with %d due messages unread, others hold them",
                self._topic,
                self._held,
            )
        self._left = 0


def refreshed(queue: Queue) -> Queue:
    """The same queue with the topic's definition as it is now."""
    broker = Broker(queue.server, key_prefix=queue.key_prefix)
    definition = broker.definition(queue.definition.name)
    return Queue(queue.server, definition, key_prefix=queue.key_prefix)


def backlog_figures(figures: Figures) -> dict[str, int | None]:
    """What every progress report shows of a topic."""
    return {
        "due": figures.store.due,
        "delayed": figures.store.count - figures.store.due,
        "prepared": figures.prepare.count,
        "retry": figures.retry.count,
        "dead": figures.dead.count,
        "oldestDueMs": figures.store.oldest_ms,
    }


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
