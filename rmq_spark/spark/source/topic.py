"""One topic of a run: the slots that the run may claim, and its plans and commits there."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rmq_spark.client.broker import Broker
from rmq_spark.client.hints import check_agrees
from rmq_spark.client.ownership import ownership_of
from rmq_spark.client.queue import Queue, overview_of
from rmq_spark.client.receiving.consumer_run import return_permits
from rmq_spark.protocol import claiming, reading, returning
from rmq_spark.protocol.claims import CommitResult, ListedClaim, SlotDue
from rmq_spark.protocol.names import claim_name
from rmq_spark.redis.server import Server
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.backlog import Backlog
from rmq_spark.spark.source.planning import PlannedClaim, allocate, claims_of, earliest
from rmq_spark.topics.definition import SLOT, TopicDefinition
from rmq_spark.topics.parsing import duration_text

_log = logging.getLogger(__name__)

# The longest that a query with availableNow waits for a rate limit: meanwhile it cannot be stopped.
LONGEST_PERMIT_WAIT_S = 10.0
# Takes a limit and what is due. Returns how much of that to take, by slot.
Choose = Callable[[int, Sequence[SlotDue]], dict[int, int]]


def open_queue(server: Server, options: SourceOptions, definition: TopicDefinition) -> Queue:
    """Open the queue of a topic for a new run; make it exclusive if the query owns slots."""
    as_it_is = "To read the topic as it is, leave out topicType and slotAmount."
    check_agrees(definition, options.topic_type, options.slot_amount, {}, as_it_is)
    if options.ensemble is not None and not definition.exclusive:
        broker = Broker(server, key_prefix=options.key_prefix)
        definition = broker.alter(definition.name, exclusive=True)
    return queue_of(server, options, definition)


def queue_of(server: Server, options: SourceOptions, definition: TopicDefinition) -> Queue:
    group = options.subscription.group
    return Queue(server, definition, key_prefix=options.key_prefix, group=group)


class TopicRun:
    """One topic of a run. backlog: that of an AvailableNow query, else None."""

    def __init__(
        self, options: SourceOptions, queue: Queue, consumer: str, run: int, backlog: Backlog | None
    ) -> None:
        self.queue = queue
        self._options = options
        self._consumer = consumer
        self._run = run
        self._backlog = backlog
        self._epochs: Mapping[int, int | None] = {}
        self._due: list[SlotDue] = []
        self._planned: list[PlannedClaim] = []  # the claims of the last plan
        self._gone: dict[int, int] = {}  # claims that the last replay did not find, by slot
        # Not the number of the batch: this topic may have a share only in every other batch. Nor
        # from 0: each run may plan one batch only.
        self._turn = secrets.randbelow(2**31)
        self.ownership = ownership_of(queue, consumer, options.ensemble)

    @property
    def name(self) -> str:
        return self.queue.definition.name

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(self._epochs)

    @property
    def found(self) -> Sequence[SlotDue]:
        return self._due

    def commit(self, slots: Iterable[int], seq: int) -> CommitResult:
        """Commit the claims that this run has made or replayed, up to batch ``seq``."""
        expected: dict[int, list[str]] = {}
        for claim in self._planned:
            if claim.seq == seq:
                name = claim_name(self._consumer, seq, claim.ordinal)
                expected.setdefault(claim.slot, []).append(name)
        result = self.queue.ask(
            claiming.commit, slots, self._consumer, self._run, seq, expected=expected
        )
        if self.queue.definition.rate is not None:
            known = result.claimed_of.keys() - result.again - result.gone.keys()
            self._return_permits(seq, {slot: result.claimed_of[slot] for slot in known})
        return result

    def unplan(self, seq: int) -> bool:
        """Return the permits of batch ``seq``, which could not be planned. False if that fails."""
        is_done = self._return_permits(seq, dict.fromkeys(self.slots, 0))
        self._planned = []
        return is_done

    def _return_permits(self, seq: int, used: Mapping[int, int]) -> bool:
        """Return the permits that batch ``seq`` has not used. used: the messages by slot."""
        taken = Counter[int]()
        for claim in self._planned:
            if claim.seq == seq:
                taken[claim.slot] += claim.limit
        unused = {slot: max(0, taken[slot] - used[slot]) for slot in taken.keys() & used}
        return return_permits(self.queue, unused)

    def commit_finished(self, seq: int, finished_by: int) -> CommitResult:
        """Commit only batch ``seq``, which an earlier run, or EVERY_RUN, has finished."""
        return self.queue.ask(
            claiming.commit,
            self.queue.slots,
            self._consumer,
            self._run,
            seq,
            since=seq - 1,
            finished_by=finished_by,
        )

    def lost_claims(self, result: CommitResult) -> dict[int, int]:
        """Count, by slot, the claims that were given back while their batch was in progress."""
        lost = {slot: count - self._gone.get(slot, 0) for slot, count in result.gone.items()}
        return {slot: count for slot, count in lost.items() if count > 0}

    def note_committed(self, result: CommitResult) -> None:
        if self._backlog is not None:
            self._backlog.note_committed(result)

    def update_slots(self) -> bool:
        """Update the slots, between batches. Returns whether the run gained any."""
        before, self._epochs = self._epochs, self.ownership.between_batches()
        return self._epochs is not before and bool(self._epochs.keys() - before.keys())

    def is_another(self, definition: TopicDefinition) -> bool:
        """Return whether the topic was created again, as far as type and slots show that."""
        mine = self.queue.definition
        return (mine.type, mine.slot_amount) != (definition.type, definition.slot_amount)

    def redefine(self, definition: TopicDefinition) -> None:
        self.queue = queue_of(self.queue.server, self._options, definition)
        self.ownership.check(definition)

    def look(self) -> int:
        if self._backlog is None and self.queue.is_paused:
            self._due = []  # spares Redis: each slot would only answer that it is paused
            return 0
        self._due = self._ask()
        due = sum(slot.due for slot in self._due)
        return due if self._backlog is None else self._backlog.bound(due)

    def _ask(self) -> list[SlotDue]:
        """Ask all slots, after expired claims were given back, so that the batch can take them."""
        slots, given_back = self.queue.ask(
            returning.look,
            self.slots,
            self._consumer,
            due_before_ms=self.due_before_ms,
            epochs=self._epochs,
        )
        if self._backlog is None:
            return slots
        self._backlog.note_given_back(given_back)
        return self._backlog.takeable(slots)

    def plan(self, limit: int, seq: int) -> list[PlannedClaim]:
        """Plan the claims of batch ``seq``, for the earliest of what ``look`` has found."""
        self._turn += 1
        quotas = self._permitted(limit, self._quotas)
        return self._plan(quotas, seq) if quotas else []

    def plan_alone(self, seq: int) -> list[PlannedClaim]:
        """Plan batch ``seq`` of one message that may have ended its last holder, if one is due."""
        suspect = next((slot for slot in self._due if slot.alone), None)
        if suspect is None or not self._ask_permits(1, lambda *_: {suspect.slot: 1})[0]:
            return []
        [claim] = self._plan({suspect.slot: 1}, seq)
        self._planned = [replace(claim, alone=True)]
        return self._planned

    def _permitted(self, limit: int, choose: Choose) -> dict[int, int]:
        """Take permits of the topic's rate limit, if it has one. Returns what to plan, by slot.

        A query that ends (AvailableNow) waits a little for permits; another looks again later.
        """
        if self.queue.definition.rate is None:
            return choose(limit, self._due)
        quotas, wait_ms = self._ask_permits(limit, choose)
        if self._backlog is not None:
            ends_s = time.monotonic() + LONGEST_PERMIT_WAIT_S  # others may take each permit first
            while not quotas and time.monotonic() + wait_ms / 1000 <= ends_s:
                self.queue.server.pause(wait_ms / 1000)
                quotas, wait_ms = self._ask_permits(limit, choose)
            if not quotas:
                _log.warning(
                    "rmq: topic %s: the query ends with due messages unread: the rate %s of the "
                    "topic allows the next one in %s",
                    *(self.name, self.queue.definition.rate, duration_text(wait_ms)),
                )
        elif not quotas:
            refused = {slot.slot: (0, wait_ms) for slot in self._due if slot.due}
            self._due = returning.within_permits(self._due, refused)
        return quotas

    def _ask_permits(self, limit: int, choose: Choose) -> tuple[dict[int, int], int]:
        """Return what the rate limit allows by slot, and if nothing, the ms until it does."""
        if self.queue.definition.rate is None:
            return choose(limit, self._due), 0
        if self.queue.definition.rate_by == SLOT:
            # Of slots without permits, a query that ends would choose as well.
            asked = {slot.slot: slot.due for slot in self._due if slot.due}
            granted = self.queue.ask(claiming.grants, asked, take=False)
            chosen = choose(limit, returning.within_permits(self._due, granted))
            wanted = {slot: number for slot, number in chosen.items() if number}
            if any(permits for permits, _ in granted.values()):
                granted = self.queue.ask(claiming.grants, wanted)
            quotas = {slot: permits for slot, (permits, _) in granted.items() if permits}
            return quotas, min((wait_ms for _, wait_ms in granted.values()), default=1)
        due = sum(slot.due for slot in self._due)
        permits, wait_ms = self.queue.ask(claiming.grant, min(limit, due))
        try:
            return choose(permits, self._due) if permits else {}, wait_ms
        except Exception:
            return_permits(self.queue, {0: permits})
            raise

    def _plan(self, quotas: dict[int, int], seq: int) -> list[PlannedClaim]:
        self._gone = {}
        if self._backlog is not None:
            self._backlog.begin(quotas)
        live = {slot.slot: slot.live for slot in self._due}
        self._planned = claims_of(self.name, quotas, seq, self._epochs, live)
        return self._planned

    def mark(self, slots: Iterable[int], mark: str) -> None:
        self.queue.ask(claiming.plan, sorted(slots), self._consumer, self._run, mark)

    def _quotas(self, limit: int, found: Sequence[SlotDue]) -> dict[int, int]:
        due = {slot.slot: slot.due for slot in found}
        if limit >= sum(due.values()):
            return allocate(due, None, self._turn)
        now_ms = self.queue.now_ms() if self.due_before_ms is None else self.due_before_ms
        of_type = self.queue.definition.type

        def counts(slots: Sequence[int], leads: Sequence[int]) -> list[list[int]]:
            scores = [of_type.score_at(lead, now_ms) for lead in leads]
            return self.queue.ask(reading.counts, slots, scores)

        return earliest(due, limit, self._turn, of_type.first_lead(now_ms), counts)

    @property
    def due_before_ms(self) -> int | None:
        return None if self._backlog is None else self._backlog.due_before_ms

    def end_backlog(self) -> None:
        if self._backlog is not None:
            self._backlog.end(self._why_stopped)

    def _why_stopped(self) -> str:
        if self.queue.is_paused:
            return "the topic is paused"
        seen = overview_of(self.queue)
        if seen.held_until_ms is None:
            return ""
        left = duration_text(seen.held_until_ms - seen.now_ms)
        return f"a hold or the rate limit keeps them back for {left}"

    def replay(self, seq_from: int, seq_to: int) -> list[ListedClaim]:
        """List the claims of batches seq_from + 1 to seq_to, and renew their leases."""
        lease_ms = self._options.lease_ms
        return self.queue.ask(
            claiming.replay, self._consumer, self._run, seq_from, seq_to, lease_ms
        )

    def gone_claims(self, listed: Iterable[ListedClaim], seq: int) -> dict[int, list[str]]:
        """Name the claims of batch ``seq`` that a replay has not listed, by slot."""
        there = {(one.slot, claim_name(self._consumer, one.seq, one.ordinal)) for one in listed}
        gone: dict[int, list[str]] = {}
        headers = self.queue.ask(reading.headers, self._consumer)
        for slot, header in zip(self.queue.slots, headers, strict=True):
            if header.last_seq != seq or seq <= header.settled:
                continue
            for ordinal in range(header.last_ordinal + 1):
                name = claim_name(self._consumer, seq, ordinal)
                if (slot, name) not in there:
                    gone.setdefault(slot, []).append(name)
        self._gone = {slot: len(names) for slot, names in gone.items()}
        return gone

    def wait_for_slots(self) -> None:
        if not self._epochs:
            self.ownership.wait_for_slots()

    def release(self, server: Server, slots: Iterable[int]) -> None:
        """End the leases in these slots. server: another connection than the queue's."""
        server.ask(claiming.release(self.queue.queues, slots, self._consumer, self._run))


def warn_of_gone_claims(
    listed: Mapping[TopicRun, Sequence[ListedClaim]], consumer: str, seq: int
) -> None:
    """Warn if claims of the replayed batch ``seq`` are gone, or if it has none at all."""
    gone = {topic: topic.gone_claims(claims, seq) for topic, claims in listed.items()}
    for topic, by_slot in gone.items():
        if by_slot:
            names = sorted({name for of_slot in by_slot.values() for name in of_slot})
            _log.warning(
                "rmq: topic %s: batch %d (counted from 1) is replayed without the claims %s of the "
                "slots %s: their leases ended, or Redis has lost them. Their messages come in a "
                "later batch.",
                topic.name,
                seq,
                ", ".join(names),
                sorted(by_slot),
            )
    if not any(listed.values()) and not any(gone.values()):
        _log.warning(
            "rmq: %s: batch %d (counted from 1) is replayed without a message, because Redis has "
            "no claim %s. Either no task had made one, or Redis fell back to an earlier state. If "
            "it fell back, messages that the batch has delivered are redelivered in a later batch.",
            "; ".join(f"topic {t.name}, slots 0 to {len(t.queue.slots) - 1}" for t in listed),
            seq,
            f"{consumer}:{seq}:*",
        )
