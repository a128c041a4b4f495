"""The consumer for plain Python: take a batch, work, commit."""

import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.batch import Batch, ProcessLock
from rmq_spark.client.receiving.consumer_run import (
    IN_TURN_EVERY,
    begin_run,
    forget_consumer,
    highest_first,
    within_rate,
)
from rmq_spark.client.receiving.waits import Waiter
from rmq_spark.client.receiving.work_in_process import IN_PROCESS
from rmq_spark.errors import ConsumerMisused, Fenced, RmqError
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import (
    MESSAGES_A_CLAIM,
    Claim,
    ClaimRequest,
    SlotDue,
)
from rmq_spark.topics.parsing import Duration, check_amount, parse_wait_ms

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 1000
# How often a consumer that waits looks whether its topic is still there.
REFRESH_S = 1.0
# How long a consumer that takes batch after batch relies on what it has seen of the slots.
RELY_S = 0.1
# How long a consumer waits after it found due messages that others took before it, a second time.
OTHERS_WERE_FASTER_S = 0.1
_FOREVER = timedelta(days=36500)


class Consumer:
    """A consumer that takes due messages of a topic, one batch at a time.

    ::

        with broker.consumer("Orders", "billing") as consumer:
            for batch in consumer.batches(limit=100):
                for message in batch:
                    try:
                        bill(message.content)
                    except Exception as error:
                        batch.rollback([message], delay="30s", reason=error)
                batch.commit()

    A batch that is not committed is given back when you take the next one or close the consumer.
    Nothing renews a lease by itself: if a batch takes long, call batch.renew() in time.

    A name belongs to one process at a time: a second start takes over from the first, which then
    fails with Fenced. Consumers with different names share the messages of a topic. With
    ZooKeeper, they share its slots, and each reads its own.

    A consumer belongs to one thread at a time. While a thread's batch is neither committed nor
    given back, no other thread can take the next one: poll raises ConsumerMisused. Open a consumer
    with a name of its own for each thread. Other threads may commit, renew or roll back a batch,
    and close the consumer.
    """

    def __init__(
        self,
        open_queue: Callable[[], Queue],
        name: str,
        *,
        lease_ms: int,
        ensemble: EnsembleOptions | None = None,
    ) -> None:
        """Take over the name from an earlier process.

        open_queue: opens the queue with the topic's current definition; called before each batch.
        lease_ms: how long a batch is kept from other consumers, above 0. ensemble: the ZooKeeper
        through which to own slots. Raises InvalidOption for a name that is not accepted,
        ExclusiveSlot for an exclusive topic without an ensemble, and OwnershipError.
        """
        self._open_queue = open_queue
        self.queue = queue = open_queue()
        self.name = name
        self._refreshed_s = time.monotonic()
        # Reentrant: a signal handler that closes the consumer may interrupt one of its calls.
        self._lock = ProcessLock(queue.server.new_lock(), name)
        self._batch: Batch | None = None  # the last one that was asked for
        self._caller = queue.server.caller()  # who took the batch
        self._closed = False
        self._waiter: Waiter | None = None  # from the first wait on
        self._may_be_quick = True
        # What was due when it looked last, less what it has taken since; until when it may rely on
        # that; and whether its last claims did.
        self._due: dict[int, SlotDue] = {}
        self._rely_until_s, self._relies = 0.0, False
        self._run = begin_run(queue, name, lease_ms, ensemble)
        self._seq = self._run.last_seq
        self._epochs: Mapping[int, int | None] = {}

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whoever cancels the task or ends the process does not mean its messages.
        ended_outside = error is not None and not isinstance(error, Exception)
        try:
            self._close(failed=error is not None, unread=ended_outside)
        except Fenced as failure:
            if error is None:  # else the caller learns of it, or has learned
                _log.warning("rmq: consumer %s ends: %s", self.name, failure)
        except RmqError as failure:
            if error is None:
                raise
            _log.warning("rmq: %s keeps its messages until the lease ends: %s", self.name, failure)

    def close(self) -> None:
        """Close the consumer and give back its uncommitted messages, for others to take at once.

        Any thread can call it. In a copy of the process, which was forked, it does nothing.
        """
        self._close()

    def _close(self, failed: bool = False, unread: bool = False) -> None:
        """Close the consumer. failed: whether an error ends it. unread: so that no message pays."""
        if self._lock.is_copy:
            return
        self._closed = True  # at once: a poll that drops expired messages looks at it
        with self._lock:
            if self._waiter is not None:
                self._waiter.close()
            try:
                self._give_back(failed, unread)
            finally:
                self._run.ownership.stop()

    def forget(self) -> None:
        """Close the consumer and delete its state in Redis. For a name that is used only once."""
        with self._lock:
            self.close()
            forget_consumer(self.queue, self.name)

    def batches(self, limit: int = DEFAULT_LIMIT, *, wait: bool = True) -> Iterator[Batch]:
        """Yield batches of up to ``limit`` messages.

        wait: whether to wait for messages when nothing is due, instead of ending. Raises
        ConsumerMisused like poll.
        """
        check_amount("limit", limit)
        while batch := (
            self.poll(limit, wait=_FOREVER) if wait else self._poll(limit, None, refresh_s=RELY_S)
        ):
            yield batch

    def poll(self, limit: int = DEFAULT_LIMIT, *, wait: Duration = 0) -> Batch:
        """Take up to ``limit`` due messages. The batch is empty if nothing is due.

        wait: how long to wait for messages if nothing is due, such as "20s". Gives back the last
        batch if it is not committed. Raises ConsumerMisused if another thread works on a batch of
        this consumer, or if the consumer is closed, also while it waits.
        """
        check_amount("limit", limit)
        wait_s = parse_wait_ms("wait", wait) / 1000
        return (
            self._poll_and_wait(limit, wait_s) if wait_s else self._poll(limit, None, refresh_s=0)
        )

    def _poll_and_wait(self, limit: int, wait_s: float) -> Batch:
        fruitless = 0
        ends_s = time.monotonic() + wait_s
        while True:
            waiter = self._open_waiter()
            waiter.look_if_time(self.queue)
            ripe = waiter.ripe()
            batch = self._poll(limit, ripe, ends_s)
            now = time.monotonic()
            if batch or now >= ends_s:
                return batch
            fruitless = fruitless + 1 if ripe and waiter.ripe() else 0
            if fruitless > 1:
                self.queue.server.pause(OTHERS_WERE_FASTER_S)
            # Without the lock: other threads may close the consumer.
            waiter.wait(self.queue, min(ends_s, now + REFRESH_S))

    def _open_waiter(self) -> Waiter:
        with self._lock:
            self._check_may_poll()
            if self._waiter is not None and self._waiter.slots != self.queue.slots:
                self._waiter.close()  # the topic was created again
                self._waiter = None
            if self._waiter is None:
                self._waiter = Waiter(self.queue)
                weakref.finalize(self, self._waiter.close)
            return self._waiter

    def _poll(
        self,
        limit: int,
        ripe: list[int] | None,
        ends_s: float = math.inf,
        *,
        refresh_s: float = REFRESH_S,
    ) -> Batch:
        with self._lock:
            self._check_may_poll()
            batch = self._batch
            if batch is not None and batch.is_at_work and not batch.is_unread:
                _log.warning(
                    "rmq: consumer %s takes a new batch before it has committed the last one, so "
                    "those messages are redelivered at the cost of a retry, unless a commit that "
                    "was interrupted has reached Redis",
                    self.name,
                )
            self._give_back()
            self._refresh(refresh_s)
            self._epochs = self._run.ownership.between_batches()
            if self._waiter is not None:
                self._waiter.read_only(self._epochs)
            try:
                batch, claims = self._claim_some(limit, ripe, ends_s)
            except RmqError:
                self._check_may_poll()  # a signal handler may have closed it amid this call
                raise
            if self._closed:
                self._give_back()
            self._check_may_poll()
            self._caller = self.queue.server.caller()
            batch.fill(claims)
            self._check_may_poll()
            if not batch:
                IN_PROCESS.end(self._run)
            return batch

    def _claim_some(
        self, wanted: int, ripe: list[int] | None, ends_s: float
    ) -> tuple[Batch, list[Claim]]:
        """Claim due messages, and drop what has expired on the way to them, until ``ends_s``."""
        batch, claims = self._claim(wanted, ripe)
        if self._relies and not any(claim.contents or claim.expired for claim in claims):
            self._give_back()  # others have taken what was left: look again
            batch, claims = self._claim(wanted, ripe)
        while any(claim.expired for claim in claims) and not any(c.contents for c in claims):
            self._give_back()  # the claims are empty
            self._check_may_poll()
            if time.monotonic() >= ends_s:
                break
            if wanted < MESSAGES_A_CLAIM:  # drop many at once; others come back unread, at no cost
                self._claim(MESSAGES_A_CLAIM, ripe, limited=False)
                self._give_back()
            batch, claims = self._claim(wanted, ripe)
        return batch, claims

    def _refresh(self, every_s: float) -> None:
        now = time.monotonic()
        if now >= self._refreshed_s + every_s:
            self.queue = self._open_queue()
            self._run.ownership.check(self.queue.definition)
            self._refreshed_s = now

    def _check_may_poll(self) -> None:
        if self._closed:
            raise ConsumerMisused(
                f"The consumer {self.name} is closed and takes nothing more. Open a new one."
            )
        caller = self.queue.server.caller()
        is_at_work = self._batch is not None and self._batch.is_at_work
        if is_at_work and caller != self._caller and self._caller.is_alive():
            kind = caller.kind
            raise ConsumerMisused(
                f"Two {kind}s use the consumer {self.name}: {kind} {caller.name} asks for a batch, "
                f"but {kind} {self._caller.name} has neither committed nor given back its own. "
                f"Open one consumer for each {kind}, each with another name."
            )

    def _claim(
        self, wanted: int, ripe: list[int] | None, *, limited: bool = True
    ) -> tuple[Batch, list[Claim]]:
        looked = self._epochs if ripe is None else self._epochs.keys() & set(ripe)
        self._relies = False
        requests = self._quick_request(wanted, list(looked))
        if not requests:
            requests = self._requests(wanted, sorted(looked))
        if requests and not requests[0].alone and not IN_PROCESS.begin(self._run):
            requests = []
        with within_rate(self.queue, requests, limited=limited) as (requests, claims):
            self._seq += 1
            slots = [request.slot for request in requests]
            batch = self._batch = Batch(self._run, self.queue, self._lock, self._seq, slots)
            claims += self._run.claim(self.queue, requests, self._seq, self._epochs)
        # If others were faster, the next request looks first, which costs Redis less.
        if requests:
            self._may_be_quick = any(claim.contents for claim in claims)
        self._note_taken(requests, claims)
        return batch, claims

    def _note_taken(self, requests: Sequence[ClaimRequest], claims: Sequence[Claim]) -> None:
        """Subtract what was claimed from what is due, or forget that if it was not all there."""
        taken = {claim.slot: len(claim.contents) for claim in claims if not claim.expired}
        for one in requests:
            known = self._due.pop(one.slot, None)
            if known is None or taken.get(one.slot) != one.limit:
                self._due.clear()
                return
            if known.due > one.limit:
                self._due[one.slot] = replace(known, due=known.due - one.limit)

    def _quick_request(self, wanted: int, ripe: Sequence[int]) -> list[ClaimRequest]:
        sure = None if self._waiter is None else self._waiter.sure_of(ripe)
        if sure is None or not self._may_be_quick:
            return []
        return [ClaimRequest(sure, 0, min(wanted, MESSAGES_A_CLAIM))]

    def _requests(self, wanted: int, slots: Sequence[int]) -> list[ClaimRequest]:
        due = self._due_slots(slots, wanted)
        suspect = next((slot for slot in due if slot.alone), None)
        if suspect is not None and IN_PROCESS.begin_alone(self._run):
            return [ClaimRequest(suspect.slot, 0, 1, others=suspect.live, alone=True)]
        requests, left = [], wanted
        for slot in self._in_order(due):
            take = min(slot.due, left, MESSAGES_A_CLAIM)
            if take:
                requests.append(ClaimRequest(slot.slot, 0, take, others=slot.live))
                left -= take
        return requests

    def _in_order(self, due: list[SlotDue]) -> list[SlotDue]:
        """Return slots with the highest priorities first, or another one first each time.

        A small limit must not starve the last slots. Readers for whom others were faster must not
        ask for the same slot again.
        """
        turn = self._seq + 1
        if self.queue.definition.type.descending and self._may_be_quick:
            if turn % IN_TURN_EVERY:
                return highest_first(due)
            turn //= IN_TURN_EVERY
        start = turn % len(due) if due else 0
        return due[start:] + due[:start]

    def _due_slots(self, slots: Sequence[int], wanted: int) -> list[SlotDue]:
        """Return the slots in which messages are due, as of now if too few were left before."""
        left = [self._due[slot] for slot in slots if slot in self._due]
        enough = sum(slot.due for slot in left) >= wanted
        self._relies = enough and time.monotonic() < self._rely_until_s
        if self._relies:
            return left
        due, _ = self.queue.ask(returning.look, slots, self.name, epochs=self._epochs)
        if self._waiter is not None:
            self._waiter.looked(due)
        found = [slot for slot in due if slot.due]
        topic = self.queue.definition
        # The highest priorities change with every claim, and what a rate allows with time.
        may_rely = topic.rate is None and not topic.type.descending
        is_sure = may_rely and not any(slot.alone for slot in found)
        self._due = {slot.slot: slot for slot in found} if is_sure else {}
        self._rely_until_s = time.monotonic() + RELY_S
        return found

    def _give_back(self, failed: bool = False, unread: bool = False) -> None:
        IN_PROCESS.end(self._run)
        if self._batch is not None:
            self._batch.give_back(failed=failed, unread=unread)
