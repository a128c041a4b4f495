"""One run of one consumer: on the driver, it plans, replays and commits batches.

::

    new --open--> running --stop--> stopped
                  |  ^
                  commit, plan, replay: one batch after another

The first call of Spark that needs a run opens it. Its first commit or replay writes its number into
the header of every slot. From then on, an older run of the same consumer can neither claim nor
commit. A batch can hold messages of several topics, and has the same number in all of them.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import CheckpointRefused, LeaseLost, RmqError
from rmq_spark.options import MESSAGES_A_TASK, MOST_TASKS
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.claiming import EVERY_RUN
from rmq_spark.protocol.claims import CommitResult, Header
from rmq_spark.redis.server import Server
from rmq_spark.spark.limits import Limits
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.backlog import NOT_READ, Backlog
from rmq_spark.spark.source.batch_sizer import BatchSizer
from rmq_spark.spark.source.leases import LeaseTimer
from rmq_spark.spark.source.offset import Offset
from rmq_spark.spark.source.planning import PlannedClaim, group_into_tasks
from rmq_spark.spark.source.task import Delivery, RmqPartition
from rmq_spark.spark.source.topic import TopicRun, open_queue, warn_of_gone_claims
from rmq_spark.spark.source.waits import Bell, Watch
from rmq_spark.topics.keys import consumer_key

_log = logging.getLogger(__name__)

# More than one, because a single batch can be unread for other reasons, such as a Redis that has
# forgotten its plan.
UNREAD_BATCHES_TO_WARN_OF = 3
# The time between two readings of the definitions while nothing is planned, whatever the slots.
DEFINITIONS_EVERY_S = 1.0
_NOTHING = CommitResult(0, 0, 0)


class QueryRun:
    def __init__(
        self,
        options: SourceOptions,
        server: Server,
        start: Offset,
        *,
        replays: bool,
        backlogs: Mapping[str, Backlog] | None,
    ) -> None:
        """Open the run.

        replays: whether Spark asks first for a batch that an earlier run has planned. backlogs: by
        topic, of an AvailableNow query.
        """
        self._options = options
        self._server = server
        self._broker = Broker(server, key_prefix=options.key_prefix)
        self._key = key = consumer_key(start.consumer, options.key_prefix)
        self._backlogs = backlogs
        self.consumer = start.consumer
        definitions = options.subscription.find(self._broker)
        queues = [open_queue(server, options, definition) for definition in definitions]
        known_run = self._known_run(queues, start, replays)
        # The checkpoint has decided that the query may read these topics. Redis can name others,
        # of a run that planned no batch, so the new run accepts whatever Redis names.
        earlier = server.ask(claiming.topics_of(key))
        if replays and earlier is None and options.fail_on_data_loss:
            raise CheckpointRefused(
                f"Redis at {server.address} does not know the query of this checkpoint, whose "
                f"batch {start.seq + 1} (counted from 1) is unfinished: it is another Redis, was "
                "emptied, or the topic was deleted there. Correct redis.url and keyPrefix. If the "
                "messages of that batch are lost, set failOnDataLoss=false for the next start, or "
                "use a new checkpointLocation and a new output folder."
            )
        replayed = start.seq + 1 if replays else None
        topics = options.subscription.text
        self._run = server.ask(claiming.open_run(key, topics, known_run, earlier, replayed))
        # The earlier run that finished the first batch to commit, or EVERY_RUN if it is unknown;
        # None if this run replays that batch.
        self._finished_by: int | None = None
        if not replays:
            self._finished_by = server.ask(claiming.replayed_by(key, start.seq)) or EVERY_RUN
        # Whether the next batch must be planned even if nothing is due. Until Spark has one, its
        # checkpoint does not show that a batch was replayed, and perhaps without its claims. If
        # these came back, such as from a backup, the next run would commit them unread.
        self._must_go_on = replays
        self._committed: int | None = None
        self._planned: dict[int, list[PlannedClaim]] = {}
        self._mark = ""  # the mark of the last planned batch
        self._replayed: dict[tuple[int, int], list[PlannedClaim]] = {}  # of the last replay
        self.last_planned: int | None = None  # the number of the last batch that this run planned
        self._unread = 0  # the number of batches in a row whose tasks made no claim
        self._watch = Watch(options.poll_interval_ms / 1000, Bell(server))
        self._is_unannounced = False  # whether only a look into the stores has found messages
        target_ms = options.target_batch_ms
        self._sizer = None if target_ms is None else BatchSizer(target_ms / 1000)
        self._lease = LeaseTimer(options, start.consumer, self._run, start.seq)
        self._topics: dict[str, TopicRun] = {}
        try:
            for queue in queues:
                self._join(queue)
            self._refreshed_s = time.monotonic()
            self._listen()
        except BaseException:  # nobody else can stop a run that is not open
            self.stop(release=False)
            raise

    def _known_run(self, queues: Iterable[Queue], start: Offset, replays: bool) -> int:
        """Check the checkpoint, and return the highest run of its consumer that any slot knows."""
        headers = [
            header for queue in queues for header in queue.ask(reading.headers, start.consumer)
        ] or [Header()]
        committed = max(header.settled for header in headers)
        committed = max(committed, self._server.ask(claiming.committed_up_to(self._key)))
        claimed = max(header.last_seq for header in headers)
        if start.seq < committed or (not replays and start.seq < claimed):
            raise CheckpointRefused(
                f"The checkpoint is at batch {start.seq} of topic {start.topic}, but its consumer "
                f"has claimed batch {claimed} and committed batch {committed} (counted from 1; "
                "Spark counts from 0). The checkpoint was restored from a backup or copied, or the "
                "query ran with asyncProgressTrackingEnabled. To continue would commit messages "
                "that nobody has read. Use a new checkpointLocation and a new output folder. "
                "Messages in progress are delivered again when their lease ends."
            )
        return max(header.run for header in headers)

    # -- topics

    def _listen(self) -> None:
        if self._backlogs is None:
            self._watch.bell.listen([topic.queue for topic in self._topics.values()])

    def _join(self, queue: Queue) -> None:
        """Read a topic from now on. An AvailableNow query skips topics that are newer than it."""
        name = queue.definition.name
        if self._backlogs is not None and name not in self._backlogs:
            return
        backlog = None if self._backlogs is None else self._backlogs[name]
        self._topics[name] = TopicRun(self._options, queue, self.consumer, self._run, backlog)

    def _leave(self, name: str, why: str) -> None:
        _log.warning("rmq: topic %s %s", name, why)
        self._topics.pop(name).ownership.stop()
        if self._sizer is not None:
            self._sizer.forget(name)

    def _refresh(self) -> bool:
        """Join new topics, and leave deleted ones. Returns whether anything has changed."""
        self._refreshed_s = time.monotonic()
        before = {name: topic.queue.definition for name, topic in self._topics.items()}
        found = {
            definition.name: definition
            for definition in self._options.subscription.find(self._broker)
        }
        for name, topic in list(self._topics.items()):
            if name not in found:
                gone = "was deleted, or this query may no longer read it"
                self._leave(name, f"{gone}; the query stops reading it")
            elif topic.is_another(found[name]):
                again = "was deleted and created again with another type or slotAmount"
                self._leave(name, f"{again}; the query reads the new one")
            else:
                topic.redefine(found[name])
        for name in found.keys() - self._topics.keys():
            self._join(open_queue(self._server, self._options, found[name]))
        self._listen()
        self._update_slots()
        return before != {name: topic.queue.definition for name, topic in self._topics.items()}

    # -- committing

    def commit(self, seq: int) -> dict[str, CommitResult] | None:
        """Commit everything up to batch ``seq``, once, in every topic.

        Returns the results by topic, or None if the run has committed this batch before. The first
        batch that a run commits, unless it has replayed it, is one that Spark finished in an
        earlier run.
        """
        if self._committed is not None and seq <= self._committed:
            return None
        held = self._lease.slots()  # once: each call goes through all topics
        results = {
            name: self._commit_topic(topic, seq, held.get(name, frozenset()))
            for name, topic in self._topics.items()
        }
        is_own = self._finished_by is None
        self._server.ask(claiming.note_committed(self._key, seq))
        self._committed = seq
        self._finished_by = None
        self._lease.let_go(seq)
        lost = self._lost_claims(results, seq)
        if lost and is_own:
            raise LeaseLost(f"{lost} Start the query again: it continues with the next batch.")
        if lost:  # it happened while no run was there, and must not keep this one from starting
            _log.warning("rmq: %s", lost)
        return results

    def _lost_claims(self, results: Mapping[str, CommitResult], seq: int) -> str:
        """Say which claims of batch ``seq`` were given back before its commit; empty for none."""
        lost = {name: self._topics[name].lost_claims(result) for name, result in results.items()}
        gone = sum(sum(by_slot.values()) for by_slot in lost.values())
        if not gone:
            return ""
        made = gone + sum(result.records for result in results.values())
        committed = sum(result.committed for result in results.values())
        where = [f"topic {name}, slots {sorted(of)}" for name, of in lost.items() if of]
        return (
            f"Batch {seq} is processed, but {gone} of its {made} claims were given back before its "
            f"commit, because their lease had ended: {'; '.join(where)}. Their messages are "
            "processed a second time, by this query or by others. The other claims are committed, "
            f"with {committed} messages. If the driver can stand still for so long, set a longer "
            "visibilityTimeout."
        )

    def _commit_topic(self, topic: TopicRun, seq: int, held: Iterable[int]) -> CommitResult:
        """Commit in one topic: at first in all slots, later only in those that the run has held."""
        if self._finished_by is not None:
            return topic.commit_finished(seq, self._finished_by)
        if self._committed is None:
            return topic.commit(topic.queue.slots, seq)
        return topic.commit(sorted(held), seq)

    def _use_results(self, results: Mapping[str, CommitResult]) -> None:
        """Learn from the last planned batch. After one that took nothing, rest."""
        if self._sizer is not None:
            self._sizer.note_committed({name: claims.claimed for name, claims in results.items()})
        last = [] if self.last_planned is None else self._planned.get(self.last_planned, [])
        for name in {claim.topic for claim in last} & self._topics.keys():
            self._topics[name].note_committed(results.get(name, _NOTHING))
        self._unread = 0 if any(claims.records for claims in results.values()) else self._unread + 1
        if self._unread == UNREAD_BATCHES_TO_WARN_OF:
            _log.warning("rmq: %s", NOT_READ)
        if self._backlogs is None and not any(claims.claimed for claims in results.values()):
            self._watch.pause_asking(doublings=self._unread)

    # -- planning

    def plan(self, start: Offset, limits: Limits | None) -> Offset:
        """Commit up to start, and plan the next batch. Returns start if there is none yet."""
        results = self.commit(start.seq)
        if results is not None and self.last_planned == start.seq:
            self._use_results(results)
        self._update_slots()
        if not (self._must_ask_all_slots() or self._must_go_on):
            return start
        planned = Offset(self.consumer, start.seq + 1, self._options.subscription.text)
        try:
            return self._plan(start, limits, planned)
        except Exception:
            # While Redis is away, the first one fails, and the others would take as long.
            all(topic.unplan(planned.seq) for topic in self._topics.values())
            raise

    def _plan(self, start: Offset, limits: Limits | None, planned: Offset) -> Offset:
        claims = self._plan_claims(limits, planned.seq)
        if not claims and self._backlogs is not None and self._gains_slots():
            claims = self._plan_claims(limits, planned.seq)
        if not claims and not self._must_go_on:
            self._found_nothing()
            return start
        self._must_go_on = False
        if self._is_unannounced:
            self._watch.note_missed()
        self._watch.found_something()
        self._planned = {planned.seq: claims}
        self._replayed = {}
        self.last_planned = planned.seq
        self._hold(planned.seq, claims)
        if self._sizer is not None:
            self._sizer.begin()
        return planned

    def wait_for_slots(self) -> None:
        """Wait where the query owns no slot yet, so that it does not end without a message."""
        for topic in self._topics.values():
            topic.wait_for_slots()

    def _gains_slots(self) -> bool:
        for topic in self._topics.values():
            topic.ownership.wait_for_slots()
        return self._update_slots()

    def _update_slots(self) -> bool:
        came = [topic.update_slots() for topic in self._topics.values()]
        if any(came):  # anything can be due in new slots
            self._watch.found_something()
        return any(came)

    def _must_ask_all_slots(self) -> bool:
        """Return whether to ask every slot now what is due in it.

        Queries that go on spare Redis: they first rest for the pollInterval, and then usually only
        look whether the stores hold due messages.
        """
        self._is_unannounced = False
        if self._backlogs is not None:
            return True
        if time.monotonic() >= self._refreshed_s + DEFINITIONS_EVERY_S and self._refresh():
            self._watch.found_something()
        if self._watch.sleep_if_early():
            return False
        if self._watch.knows_too_little():
            return True
        self._watch.rest()
        one_node = not self._server.is_cluster
        asked = [
            reading.any_due(topic.queue.queues, topic.slots, one_node=one_node)
            for topic in self._topics.values()
        ]
        self._is_unannounced = self._server.ask(reading.any_of(asked))
        return self._is_unannounced

    def _plan_claims(self, limits: Limits | None, seq: int) -> list[PlannedClaim]:
        self._refresh()
        due = {name: count for name, topic in self._topics.items() if (count := topic.look())}
        if limits is not None:
            due = limits.bound(due)
            due = due if self._sizer is None else self._sizer.limits(due)
            due = limits.shares(due, seq)
        for name in due:
            if suspect := self._topics[name].plan_alone(seq):
                return suspect
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
        replay = end.seq not in self._planned
        claims = self._replay(start.seq, end.seq) if replay else self._planned[end.seq]
        delivery = Delivery(
            topics={name: topic.queue.definition for name, topic in self._topics.items()},
            consumer=self.consumer,
            run=self._run,
            due_before_ms=next((b.due_before_ms for b in (self._backlogs or {}).values()), None),
            mark="" if replay else self._mark,
        )
        tasks = group_into_tasks(claims, self._tasks(claims))
        return [RmqPartition(delivery, of_task) for of_task in tasks]

    def _tasks(self, claims: list[PlannedClaim]) -> int:
        if self._options.num_partitions is not None:
            return self._options.num_partitions
        planned = sum(claim.limit for claim in claims)
        return max(1, min(MOST_TASKS, planned // MESSAGES_A_TASK))

    def _replay(self, seq_from: int, seq_to: int) -> list[PlannedClaim]:
        """Find the claims of batches seq_from + 1 to seq_to, and renew all leases from now on."""
        if (seq_from, seq_to) not in self._replayed:
            listed = {topic: topic.replay(seq_from, seq_to) for topic in self._topics.values()}
            if seq_from < seq_to:  # Spark's first batch is empty where no message is due
                warn_of_gone_claims(listed, self.consumer, seq_to)
            claims = [
                PlannedClaim(topic.name, one.slot, one.seq, one.ordinal, max(1, one.count))
                for topic, of_topic in listed.items()
                for one in of_topic
            ]
            self._replayed = {(seq_from, seq_to): claims}
            for topic in self._topics.values():
                self._lease.hold(seq_to, topic.queue, topic.queue.slots)
        return self._replayed[seq_from, seq_to]

    def _hold(self, seq: int, claims: Iterable[PlannedClaim]) -> None:
        """Leave a mark in the slots of a plan, and renew the leases there from now on.

        A slot that loses the mark has perhaps lost claims, too, and makes none.
        """
        self._mark = secrets.token_hex(8)
        slots_of: dict[str, set[int]] = {}
        for claim in claims:
            slots_of.setdefault(claim.topic, set()).add(claim.slot)
        for name, slots in slots_of.items():
            self._topics[name].mark(slots, self._mark)
        for name, slots in slots_of.items():
            self._lease.hold(seq, self._topics[name].queue, slots)

    # -- the end

    def stop(self, release: bool) -> None:
        """Stop renewing leases, and leave the topics.

        release: end the leases as well. Claims in owned slots always keep theirs: tasks of a query
        that ends can continue for a while, and nobody else may get their messages.
        """
        self._watch.bell.close()
        held = self._lease.slots()
        self._lease.end()
        shared = [
            topic
            for name, topic in self._topics.items()
            if held.get(name) and not topic.ownership.exclusive
        ]
        if release and shared:
            # The signal that ends this process may have interrupted a reply on the old connection.
            server = Server(self._options.connection, patience_s=1.0)
            try:
                _release_all(server, {topic: sorted(held[topic.name]) for topic in shared})
            finally:
                server.close()
        for topic in self._topics.values():
            topic.ownership.stop()

    def figures(self) -> dict[str, dict[str, float]]:
        figures: dict[str, dict[str, float]] = {}
        for name, topic in self._topics.items():
            figures[name] = dict(topic.ownership.figures())
            if self._sizer is not None and self._sizer.knows(name):
                figures[name]["messageMs"] = round(1000 * self._sizer.cost_s(name), 4)
        return figures


def _release_all(server: Server, slots: Mapping[TopicRun, list[int]]) -> None:
    """End the leases in every topic, even if that fails in one. Raises the last error."""
    failed: RmqError | None = None
    for topic, held in slots.items():
        try:
            topic.release(server, held)
        except RmqError as error:
            failed = error
    if failed is not None:
        raise failed
