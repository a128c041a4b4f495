"""One run of one consumer: what the driver's side of the source knows and does.

::

    new --open--> running --stop--> stopped
                  |  ^
                  commit, plan, replay: one batch after another

A run is opened by the first call that needs it. From then on its number stands in every slot's
header, and an older run of the same consumer can claim and commit nothing. A batch may hold
messages of several topics; its number counts in each of them.
"""

import logging
import secrets
from collections.abc import Iterable, Mapping

from rmq_spark.client.broker import Broker
from rmq_spark.client.consumer_runs import ConsumerRuns
from rmq_spark.client.queue import Queue
from rmq_spark.errors import CheckpointRefused, RmqError
from rmq_spark.options.source_options import MESSAGES_A_TASK, MOST_TASKS
from rmq_spark.protocol import reading
from rmq_spark.protocol.claiming import EVERY_RUN
from rmq_spark.protocol.claims import CommitResult, Header
from rmq_spark.spark.batch_limits import Limits
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.backlog import NOT_READ, Backlog
from rmq_spark.spark.source.batch_sizing import FlowControl
from rmq_spark.spark.source.lease_renewal import LeaseTimer
from rmq_spark.spark.source.offsets import Offset
from rmq_spark.spark.source.planning import PlannedClaim, share_out
from rmq_spark.spark.source.polling import Watch
from rmq_spark.spark.source.task_reader import Delivery, RmqPartition
from rmq_spark.spark.source.topic_run import TopicRun, open_queue
from rmq_spark.transport.server import Server

_log = logging.getLogger(__name__)

# One batch may go unread for other reasons, such as a Redis that has forgotten its plan.
UNREAD_BATCHES_TO_WARN_OF = 3
_NOTHING = CommitResult(0, 0, 0)


class ConsumerRun:
    """The batches of one run: which are planned, which are committed."""

    def __init__(
        self,
        options: SourceOptions,
        server: Server,
        start: Offset,
        *,
        replays: bool,
        backlogs: Mapping[str, Backlog] | None,
    ) -> None:
        """Opens the run.

        start: where the checkpoint stands. replays: whether the first thing asked for is a batch
        that an earlier run had begun. backlogs: by topic, what an AvailableNow query has still to
        read; None for a query that goes on. Raises CheckpointRefused, UnknownTopic.
        """
        self._options = options
        self._server = server
        self._broker = Broker(server, key_prefix=options.key_prefix)
        self._book = ConsumerRuns(server, start.consumer, options.key_prefix)
        self._backlogs = backlogs
        self.consumer = start.consumer
        definitions = options.subscription.find(self._broker)
        queues = [open_queue(server, options, definition) for definition in definitions]
        known_run = _checked(self._book, queues, start, replays)
        # Whether it may read these topics the checkpoint has told; the book may be of an idle run.
        earlier = self._book.topics()
        replayed = start.seq + 1 if replays else None
        self._run = self._book.open(options.subscription.text, known_run, earlier, replayed)
        # Who finished the batch that is committed first; None where this run itself replays it.
        self._finished_by = None if replays else self._book.replayed_by(start.seq) or EVERY_RUN
        self._committed: int | None = None
        self._planned: dict[int, list[PlannedClaim]] = {}
        self._mark = ""  # of the batch that this run planned last
        self._replayed: dict[tuple[int, int], list[PlannedClaim]] = {}
        self.last_planned: int | None = None  # the number of the batch that this run planned last
        self._unread = 0  # batches in a row of which no claim was made
        self._watch = Watch(options.poll_interval_ms / 1000)
        target_ms = options.target_batch_ms
        self._flow = None if target_ms is None else FlowControl(target_ms / 1000)
        self._lease = LeaseTimer(options, start.consumer, self._run, start.seq)
        self._topics: dict[str, TopicRun] = {}
        for queue in queues:
            self._join(queue)

    # -- topics

    def _join(self, queue: Queue) -> None:
        name = queue.definition.name
        if self._backlogs is not None and name not in self._backlogs:
            return  # made since an AvailableNow query began
        backlog = None if self._backlogs is None else self._backlogs[name]
        self._topics[name] = TopicRun(self._options, queue, self.consumer, self._run, backlog)

    def _leave(self, name: str) -> None:
        self._topics.pop(name).ownership.stop()
        if self._flow is not None:
            self._flow.forget(name)

    def _refresh(self) -> None:
        """Brings the definitions up to date; of a pattern, also which topics there are."""
        found = {
            definition.name: definition
            for definition in self._options.subscription.find(self._broker)
        }
        for name, topic in list(self._topics.items()):
            if name not in found:
                _log.warning("rmq: topic %s is not there any more, or not for this query", name)
                self._leave(name)
            elif topic.is_another(found[name]):
                _log.warning("rmq: topic %s was deleted and made anew", name)
                self._leave(name)
            else:
                topic.redefine(found[name])
        for name in found.keys() - self._topics.keys():
            self._join(open_queue(self._server, self._options, found[name]))
        self._look_at_slots()

    # -- committing

    def commit(self, seq: int) -> dict[str, CommitResult] | None:
        """Commits everything up to a batch, once: by topic. None when that was done before.

        The first batch that a run commits without having replayed it is one that Spark finished in
        an earlier run.
        """
        if self._committed is not None and seq <= self._committed:
            return None
        results = {name: self._commit_topic(topic, seq) for name, topic in self._topics.items()}
        self._book.note_committed(seq)
        self._committed = seq
        self._finished_by = None
        self._lease.let_go(seq)
        return results

    def _commit_topic(self, topic: TopicRun, seq: int) -> CommitResult:
        if self._finished_by is not None:
            return topic.commit_finished(seq, self._finished_by)
        if self._committed is None:
            return topic.commit(topic.queue.slots, seq)
        return topic.commit(sorted(self._lease.slots().get(topic.name, ())), seq)

    def _learn(self, results: Mapping[str, CommitResult]) -> None:
        """From what became of the batch that this run has planned last."""
        if self._flow is not None:
            self._flow.done({name: claims.claimed for name, claims in results.items()})
        last = [] if self.last_planned is None else self._planned.get(self.last_planned, [])
        for name in {claim.topic for claim in last} & self._topics.keys():
            self._topics[name].done(results.get(name, _NOTHING))
        self._unread = 0 if any(claims.records for claims in results.values()) else self._unread + 1
        if self._unread == UNREAD_BATCHES_TO_WARN_OF:
            _log.warning("rmq: %s", NOT_READ)
        if self._backlogs is None and not any(claims.claimed for claims in results.values()):
            self._watch.rest(doublings=self._unread)

    # -- planning

    def plan(self, start: Offset, limits: Limits | None) -> Offset:
        """Commits what is before start and plans the next batch; start itself if nothing is due.

        limits: None for all that is due.
        """
        results = self.commit(start.seq)
        if results is not None and self.last_planned == start.seq:
            self._learn(results)
        self._look_at_slots()
        if not self._worth_asking():
            return start
        planned = Offset(self.consumer, start.seq + 1, self._options.subscription.text)
        claims = self._next(limits, planned.seq)
        if not claims and self._backlogs is not None and self._has_grown():
            claims = self._next(limits, planned.seq)
        if not claims:
            self._found_nothing()
            return start
        self._watch.found_something()
        self._planned = {planned.seq: claims}
        self._replayed = {}
        self.last_planned = planned.seq
        self._leave_mark(claims)
        self._hold(planned.seq, claims)
        if self._flow is not None:
            self._flow.begin()
        return planned

    def wait_for_slots(self) -> None:
        """For a query that ends when it finds nothing: waits while it owns no slot."""
        for topic in self._topics.values():
            topic.wait_for_slots()

    def _has_grown(self) -> bool:
        """Whether slots came to it while it worked; for a query that is about to end."""
        for topic in self._topics.values():
            topic.ownership.wait_for_slots()
        return self._look_at_slots()

    def _look_at_slots(self) -> bool:
        """Whether slots came to it since the last look; in new ones anything may be due."""
        came = [topic.look_at_slots() for topic in self._topics.values()]
        if any(came):
            self._watch.found_something()
        return any(came)

    def _worth_asking(self) -> bool:
        """Whether all slots are asked what is due in them; a query that goes on spares Redis."""
        if self._backlogs is not None:
            return True
        if self._watch.rests():
            return False
        if self._watch.knows_too_little():
            return True
        self._watch.rest()
        one_node = not self._server.is_cluster
        asked = [
            reading.any_due(topic.queue.queues, topic.slots, one_node=one_node)
            for topic in self._topics.values()
        ]
        return self._server.ask(reading.any_of(asked))

    def _next(self, limits: Limits | None, seq: int) -> list[PlannedClaim]:
        self._refresh()
        due = {name: count for name, topic in self._topics.items() if (count := topic.look())}
        if limits is not None:
            due = limits.bound(due)
            due = due if self._flow is None else self._flow.limits(due)
            due = limits.shares(due, seq)
        return [
            claim for name, count in due.items() for claim in self._topics[name].plan(count, seq)
        ]

    def _found_nothing(self) -> None:
        if self._backlogs is None:
            found = [slot for topic in self._topics.values() for slot in topic.found]
            self._watch.found_nothing(found)
        for topic in self._topics.values():
            topic.end_backlog()

    # -- handing out

    def partitions(self, start: Offset, end: Offset) -> list[RmqPartition]:
        """The tasks of the batches after start up to end: as planned, or made again (a restart)."""
        replay = end.seq not in self._planned
        claims = self._replay(start.seq, end.seq) if replay else self._planned[end.seq]
        delivery = Delivery(
            topics={name: topic.queue.definition for name, topic in self._topics.items()},
            consumer=self.consumer,
            run=self._run,
            due_before_ms=next((b.due_before_ms for b in (self._backlogs or {}).values()), None),
            mark="" if replay else self._mark,
        )
        return [RmqPartition(delivery, share) for share in share_out(claims, self._tasks(claims))]

    def _tasks(self, claims: list[PlannedClaim]) -> int:
        """How many tasks: as asked for, else so many that each is worth its start."""
        if self._options.num_partitions is not None:
            return self._options.num_partitions
        planned = sum(claim.limit for claim in claims)
        return max(1, min(MOST_TASKS, planned // MESSAGES_A_TASK))

    def _replay(self, seq_from: int, seq_to: int) -> list[PlannedClaim]:
        if (seq_from, seq_to) not in self._replayed:
            claims = [
                PlannedClaim(name, listed.slot, listed.seq, listed.ordinal, max(1, listed.count))
                for name, topic in self._topics.items()
                for listed in topic.replay(seq_from, seq_to)
            ]
            self._replayed = {(seq_from, seq_to): claims}
            for topic in self._topics.values():
                self._lease.hold(seq_to, topic.queue, topic.queue.slots)
        return self._replayed[seq_from, seq_to]

    def _leave_mark(self, claims: Iterable[PlannedClaim]) -> None:
        """Makes the claims of this plan distinguishable from any that Redis may forget."""
        self._mark = secrets.token_hex(8)
        for name, slots in _slots_of(claims).items():
            self._topics[name].mark(slots, self._mark)

    def _hold(self, seq: int, claims: Iterable[PlannedClaim]) -> None:
        for name, slots in _slots_of(claims).items():
            self._lease.hold(seq, self._topics[name].queue, slots)

    # -- the end

    def stop(self, release: bool) -> None:
        """Stop renewing leases; with ``release``, give the batch in work to whoever comes first.

        Claims in slots that are owned always stay for their lease: tasks of a query that ends may
        go on for a while, and the messages that they have in work are nobody else's.
        """
        held = self._lease.slots()
        self._lease.end()
        shared = [
            topic
            for name, topic in self._topics.items()
            if held.get(name) and not topic.ownership.exclusive
        ]
        if release and shared:
            # The signal that ends us may have cut off a reply: a fresh connection is clean.
            server = Server(self._options.connection, patience_s=1.0)
            try:
                _release_all(server, {topic: sorted(held[topic.name]) for topic in shared})
            finally:
                server.close()
        for topic in self._topics.values():
            topic.ownership.stop()

    def figures(self) -> dict[str, dict[str, float]]:
        """What a progress report tells beside the backlog, by topic.

        slotsOwned and members where slots are owned; with targetBatchDuration messageMs, what a
        message is thought to take.
        """
        figures: dict[str, dict[str, float]] = {}
        for name, topic in self._topics.items():
            figures[name] = dict(topic.ownership.figures())
            if self._flow is not None and self._flow.knows(name):
                figures[name]["messageMs"] = round(1000 * self._flow.cost_s(name), 4)
        return figures


def _slots_of(claims: Iterable[PlannedClaim]) -> dict[str, set[int]]:
    slots: dict[str, set[int]] = {}
    for claim in claims:
        slots.setdefault(claim.topic, set()).add(claim.slot)
    return slots


def _release_all(server: Server, slots: Mapping[TopicRun, list[int]]) -> None:
    """Releases in every topic, even if that fails in one. Raises the last error."""
    failed: RmqError | None = None
    for topic, held in slots.items():
        try:
            topic.release(server, held)
        except RmqError as error:
            failed = error
    if failed is not None:
        raise failed


def _checked(book: ConsumerRuns, queues: Iterable[Queue], start: Offset, replays: bool) -> int:
    """The highest run known of a consumer. Raises CheckpointRefused for a stale checkpoint."""
    headers = [
        header for queue in queues for header in queue.ask(reading.headers, start.consumer)
    ] or [Header()]
    committed = max(book.committed_up_to(), max(header.settled for header in headers))
    claimed = max(header.last_seq for header in headers)
    if start.seq < committed or (not replays and start.seq < claimed):
        raise CheckpointRefused(
            f"The checkpoint stands at batch {start.seq} of topic {start.topic}, but its consumer "
            f"has claimed batch {claimed} and committed batch {committed}: it was restored or "
            "copied. Going on would commit messages that nobody has read. Start with a new "
            "checkpointLocation; what is in flight comes back when its lease runs out."
        )
    return max(header.run for header in headers)
