"""What one run of a consumer does in one topic: which slots it may claim, and what of them."""

from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.client.broker import Broker, check_agrees
from rmq_spark.client.queue import Queue
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.claims import CommitResult, ListedClaim, SlotDue
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.backlog import Backlog
from rmq_spark.spark.source.owned_slots import AllSlots, OwnedSlots
from rmq_spark.spark.source.planning import PlannedClaim, allocate, claims_of, earliest
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.transport.server import Server


def open_queue(server: Server, options: SourceOptions, definition: TopicDefinition) -> Queue:
    """A topic's queue for a run that begins. Raises TopicMismatch, InvalidOption."""
    check_agrees(definition, options.topic_type, options.slot_amount)
    if options.ensemble is not None and not definition.exclusive:
        broker = Broker(server, key_prefix=options.key_prefix)
        definition = broker.alter(definition.name, exclusive=True)
    return queue_of(server, options, definition)


def queue_of(server: Server, options: SourceOptions, definition: TopicDefinition) -> Queue:
    """The queue of the consumer group that a source reads. Raises InvalidOption without it."""
    group = options.subscription.group
    return Queue(server, definition, key_prefix=options.key_prefix, group=group)


class TopicRun:
    """One topic of a run. backlog: what an AvailableNow query has still to read of it."""

    def __init__(
        self,
        options: SourceOptions,
        queue: Queue,
        consumer: str,
        run: int,
        backlog: Backlog | None,
    ) -> None:
        self.queue = queue
        self._options = options
        self._consumer = consumer
        self._run = run
        self._backlog = backlog
        self._epochs: Mapping[int, int | None] = {}
        self._due: list[SlotDue] = []
        self.ownership: AllSlots | OwnedSlots = (
            AllSlots(queue.definition)
            if options.ensemble is None
            else OwnedSlots(options.ensemble, queue, consumer)
        )

    @property
    def name(self) -> str:
        """The topic's."""
        return self.queue.definition.name

    @property
    def slots(self) -> tuple[int, ...]:
        """Those that it may claim, by the last look."""
        return tuple(self._epochs)

    @property
    def found(self) -> Sequence[SlotDue]:
        """What was found by the last look."""
        return self._due

    def commit(self, slots: Iterable[int], seq: int) -> CommitResult:
        """Commit what this run has claimed or replayed up to a batch."""
        return self.queue.ask(claiming.commit, slots, self._consumer, self._run, seq)

    def commit_finished(self, seq: int, finished_by: int) -> CommitResult:
        """Commit, in all slots, the one batch that an earlier run has finished."""
        return self.queue.ask(
            claiming.commit,
            self.queue.slots,
            self._consumer,
            self._run,
            seq,
            since=seq - 1,
            finished_by=finished_by,
        )

    def done(self, result: CommitResult) -> None:
        """That is what became of the batch that this run planned last."""
        if self._backlog is not None:
            self._backlog.done(result)

    def look_at_slots(self) -> bool:
        """Brings the slots that it may claim up to date; whether some came that it had not."""
        before = self._epochs.keys()
        self._epochs = self.ownership.between_batches()
        return bool(self._epochs.keys() - before)

    def is_another(self, definition: TopicDefinition) -> bool:
        """Whether the topic was deleted and made anew as a different one."""
        mine = self.queue.definition
        return (mine.type, mine.slot_amount) != (definition.type, definition.slot_amount)

    def redefine(self, definition: TopicDefinition) -> None:
        """Takes over the topic's definition as it is now. Raises InvalidOption, OwnershipError."""
        self.queue = queue_of(self.queue.server, self._options, definition)
        self.ownership.check(definition)

    def look(self) -> int:
        """Asks all slots what is due. Returns how many messages a batch could take."""
        self._due = self._ask()
        due = sum(slot.due for slot in self._due)
        return due if self._backlog is None else self._backlog.bound(due)

    def _ask(self) -> list[SlotDue]:
        slots = self.queue.ask(
            reading.due,
            self.slots,
            self._consumer,
            due_before_ms=self.due_before_ms,
            epochs=self._epochs,
        )
        return slots if self._backlog is None else self._backlog.takeable(slots)

    def plan(self, limit: int, seq: int) -> list[PlannedClaim]:
        """The claims of a batch: of all messages that are due, the first so many."""
        quotas = self._first_of(limit, seq)
        if self._backlog is not None:
            self._backlog.begin(quotas)
        return claims_of(self.name, quotas, seq, self._epochs)

    def mark(self, slots: Iterable[int], mark: str) -> None:
        """Leaves the mark of a planned batch in the slots that are to give messages to it."""
        self.queue.ask(claiming.plan, sorted(slots), self._consumer, self._run, mark)

    def _first_of(self, limit: int, seq: int) -> dict[int, int]:
        due = {slot.slot: slot.due for slot in self._due}
        if limit >= sum(due.values()):
            return allocate(due, None, seq)
        now_ms = self.queue.now_ms() if self.due_before_ms is None else self.due_before_ms
        of_type = self.queue.definition.type

        def counts(slots: Sequence[int], places: Sequence[int]) -> list[list[int]]:
            return self._counts(slots, [of_type.score_at(place, now_ms) for place in places])

        return earliest(due, limit, seq, of_type.first_place(now_ms), counts)

    def _counts(self, slots: Sequence[int], scores: Sequence[int]) -> list[list[int]]:
        return self.queue.ask(reading.counts, slots, scores)

    @property
    def due_before_ms(self) -> int | None:
        """What falls due later is not for this query; None where it goes on for ever."""
        return None if self._backlog is None else self._backlog.due_before_ms

    def end_backlog(self) -> None:
        """Nothing more is read by an AvailableNow query."""
        if self._backlog is not None:
            self._backlog.end()

    def replay(self, seq_from: int, seq_to: int) -> list[ListedClaim]:
        """The claims of the batches after seq_from up to seq_to, which an earlier run has made."""
        lease_ms = self._options.lease_ms
        return self.queue.ask(
            claiming.replay, self._consumer, self._run, seq_from, seq_to, lease_ms
        )

    def wait_for_slots(self) -> None:
        """Waits while it owns none of the slots that are to be its own."""
        if not self._epochs:
            self.ownership.wait_for_slots()

    def release(self, server: Server, slots: Iterable[int]) -> None:
        """Gives back what is in work there, through another connection."""
        server.ask(claiming.release(self.queue.queues, slots, self._consumer, self._run))
