"""The consumer for plain Python: take a batch, work, commit."""

import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from types import TracebackType
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.consumer_run import (
    ConsumerRun,
    begin_run,
    forget_consumer,
    return_unused,
    within_rate,
)
from rmq_spark.client.receiving.waits import Waiter
from rmq_spark.client.receiving.work_in_process import IN_PROCESS
from rmq_spark.client.tracing import LoopSpans
from rmq_spark.errors import ConsumerMisused, InvalidOption, LeaseLost, RmqError
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import (
    MESSAGES_A_CLAIM,
    Claim,
    ClaimRequest,
    Columns,
    Delivered,
    SlotDue,
    messages_of,
)
from rmq_spark.topics.parsing import Duration, check_amount, parse_wait_ms
from rmq_spark.topics.reasons import parse_reason
from rmq_spark.topics.verdicts import Ending, Failure, parse_delay_ms

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 1000
# How often a consumer that waits looks whether its topic is still there.
REFRESH_S = 1.0
# How long a consumer that takes batch after batch relies on what it has seen of the slots.
RELY_S = 0.1
# How long a consumer waits after it found due messages that others took before it, a second time.
OTHERS_WERE_FASTER_S = 0.1
_FOREVER = timedelta(days=36500)


class ProcessLock:
    """A lock of a consumer, whose copy would commit or give back what is not its own."""

    def __init__(self, lock: AbstractContextManager[Any], name: str) -> None:
        self._lock = lock
        self._name = name
        self._process = os.getpid()

    @property
    def is_copy(self) -> bool:
        """Whether this process is a copy of the one in which the lock was made."""
        return os.getpid() != self._process

    def __enter__(self) -> None:
        # Before the lock is taken: another thread may have held it when the process was forked.
        if self.is_copy:
            raise ConsumerMisused(
                f"The consumer {self._name} belongs to process {self._process}, and this is a copy "
                "of that process. Open a consumer with another name in each process."
            )
        self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


class Batch:
    """Messages that a consumer has taken and not yet committed. From ``consumer.poll``.

    Iterate over it: each message is a Delivered. ``len(batch)`` is their number. Any thread can
    call its methods.
    """

    def __init__(
        self, run: ConsumerRun, queue: Queue, lock: ProcessLock, seq: int, slots: Sequence[int]
    ) -> None:
        """Begin a batch, which is empty until ``fill``. slots: those of its claims."""
        self._run, self._queue, self._lock = run, queue, lock
        self._seq, self._slots = seq, slots
        self._size = 0
        self._columns: list[Columns] = []  # its messages, by claim
        self._spans = LoopSpans(queue.keys.group)
        # The number of messages that were not rolled back, by slot and claim.
        self._waiting: dict[tuple[int, str], int] = {}
        self._is_seen = self._is_done = self._is_given_back = self._is_unread = False

    def __iter__(self) -> Iterator[Delivered]:
        return self._spans.over(self._messages())

    def _messages(self) -> Iterator[Delivered]:
        # Made anew: a message that nobody keeps costs Python's collection of garbage nothing.
        return chain.from_iterable(map(messages_of, self._columns))

    def __len__(self) -> int:
        return self._size

    def commit(self) -> int:
        """Commit the messages that were not rolled back. Return their number.

        A second call changes nothing and returns 0. Raises LeaseLost if the lease of some messages
        expired and they were given back; all others are then committed. Also raises LeaseLost if
        the whole batch was given back because you took the next one or closed the consumer. Raises
        ConsumerMisused if the batch is marked as unread.
        """
        with self._lock:
            if self._is_done:
                return 0
            self._check_is_taken()
            self._refuse_unread("commit it")
            result = self._run.commit(self._queue, dict.fromkeys(self._slots, self._seq))
            self._is_done, self._slots = True, ()
            IN_PROCESS.end(self._run)
            # Settled before: by a try whose answer was lost, or by a signal handler that has closed
            # the consumer amid this call, and given back what the call did not commit first.
            again = frozenset() if self._is_given_back else result.again
            if not result.held:
                self._check_is_taken()
            waiting = self._waiting.items()
            done = result.committed + sum(n for (slot, _), n in waiting if slot in again)
            self._check_is_held(result.held | again, f"{done} are committed")
            return done

    def rollback(
        self,
        messages: Iterable[Delivered] | None = None,
        *,
        delay: Duration | None = None,
        reason: str | BaseException | None = None,
        bury: bool = False,
        charge: bool = True,
    ) -> int:
        """Roll back ``messages``, or the whole batch. The other messages still wait for commit.

        Messages are redelivered after ``delay`` (such as "30s"; a timedelta; ms), or after the
        topic's backoff if delay is None. A message without a retry left moves to the dead queue,
        which keeps the first 500 characters of ``reason``. bury: move all of them there, whatever
        retries are left. charge: False if it costs no retry; then a delay of None is none. Returns
        how many were rolled back; messages whose lease has expired are not counted.
        """
        failed = list(self._messages() if messages is None else messages)
        failure = _failure(delay, reason, bury, charge)
        if charge:
            self._spans.mark_failed(failed, reason)
        wanted = returning.grouped(
            (message.slot, message.claim_id, message.name, failure) for message in failed
        )
        with self._lock:
            self._refuse_unread("roll messages of it back")
            results = self._queue.ask(returning.rollback_each, wanted)
            for one, result in zip(wanted, results, strict=True):
                if (claim := (one.slot, one.claim_id)) in self._waiting:  # else of another batch
                    self._waiting[claim] -= result.rolled_back
        return sum(result.rolled_back for result in results)

    def mark_unread(self) -> None:
        """Mark the batch as unread, so that it costs no retry. For a consumer that only looks.

        The messages return to their places when they are given back: when you take the next batch,
        when you close the consumer, or when the lease expires. commit and rollback then raise
        ConsumerMisused. Raises LeaseLost if the batch was given back.
        """
        with self._lock:
            if not self._is_done:
                self._check_is_taken()
                self._run.mark_unread(self._queue, self._slots, self._seq)
                self._is_unread = True

    def renew(self) -> None:
        """Renew the lease, for a batch that takes a long time.

        Raises LeaseLost like commit; the messages that you still hold then have the new lease.
        """
        with self._lock:
            if not self._is_done:
                self._check_is_taken()
                renewed = self._run.renew(self._queue, dict.fromkeys(self._slots, self._seq))
                held = {slot for slot, claims in renewed.items() if claims}
                self._check_is_held(held, "The others have a new lease")

    # -- for the consumer, under its lock

    @property
    def is_at_work(self) -> bool:
        """Whether messages wait for the commit."""
        return not (self._is_done or self._is_given_back) and any(self._waiting.values())

    @property
    def is_unread(self) -> bool:
        """Whether the batch costs no retry."""
        return self._is_unread

    def fill(self, claims: Sequence[Claim]) -> None:
        """Add the messages of the claims. From now on, giving the batch back costs a retry."""
        self._is_seen = True  # first: what cannot be read costs a retry, too, and dies in the end
        self._columns = [claim.columns(self._queue.definition) for claim in claims]
        self._waiting = {(claim.slot, claim.claim_id): len(claim.contents) for claim in claims}
        self._size = sum(self._waiting.values())
        self._is_done = not self._size

    def give_back(self, *, failed: bool = False) -> None:
        """Give it back, at no cost if nobody has got it. failed: whether an error ends the work."""
        self._is_given_back = True
        if self._slots:
            if self._is_seen:
                self._run.give_back(self._queue, self._slots, self._seq, failed=failed)
            else:
                self._run.give_back_unread(self._queue, self._slots, self._seq)
            self._slots = ()

    def _check_is_taken(self) -> None:
        if self._is_given_back:
            raise LeaseLost(
                f"The batch of consumer {self._run.name} was given back when the next one was "
                "taken or the consumer was closed: its messages come again. Commit before that."
            )

    def _refuse_unread(self, done: str) -> None:
        if self._is_unread:
            raise ConsumerMisused(
                f"The batch of consumer {self._run.name} is marked unread: it can only be "
                f"given back. Take another batch to {done}."
            )

    def _check_is_held(self, held: Container[int], done: str) -> None:
        """Raise LeaseLost unless every slot with messages that were not rolled back is in ``held``.

        A claim is always given back as a whole, and its record is deleted. A claim whose messages
        were all rolled back, even by others who have its claimId, keeps its record until its
        commit.
        """
        lost = sum(n for (slot, _), n in self._waiting.items() if slot not in held)
        if lost:
            name, lease_ms = self._run.name, self._run.lease_ms
            raise LeaseLost(
                f"Consumer {name} no longer holds {lost} of {len(self)} messages of its batch: "
                f"their lease (visibility_timeout, {lease_ms} ms) ended, or Redis has forgotten "
                "the claim. Unless the topic was deleted, they come again, here or at another "
                f"consumer, or are in the dead queue. {done}. Take fewer messages at once, call "
                "renew() in time, or set a longer visibility_timeout."
            )


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
        try:
            self._close(failed=error is not None)
        except RmqError as failure:
            if error is None:
                raise
            _log.warning("rmq: %s keeps its messages until the lease ends: %s", self.name, failure)

    def close(self) -> None:
        """Close the consumer and give back its uncommitted messages, for others to take at once.

        Any thread can call it. In a copy of the process, which was forked, it does nothing.
        """
        self._close()

    def _close(self, failed: bool = False) -> None:
        """Close the consumer. failed: whether an error ends it, so that no message pays for it."""
        if self._lock.is_copy:
            return
        self._closed = True  # at once: a poll that drops expired messages looks at it
        with self._lock:
            if self._waiter is not None:
                self._waiter.close()
            try:
                self._give_back(failed)
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
                    "those messages come again with one retry less",
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
        if limited:
            requests = within_rate(self.queue, requests)
        self._seq += 1
        slots = [request.slot for request in requests]
        batch = self._batch = Batch(self._run, self.queue, self._lock, self._seq, slots)
        claims = self._run.claim(self.queue, requests, self._seq, self._epochs)
        if limited:
            return_unused(self.queue, requests, claims)
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
        # Starts at another slot each time, so that a small limit does not starve the last slots.
        start = (self._seq + 1) % len(due) if due else 0
        requests, left = [], wanted
        for slot in due[start:] + due[:start]:
            take = min(slot.due, left, MESSAGES_A_CLAIM)
            if take:
                requests.append(ClaimRequest(slot.slot, 0, take, others=slot.live))
                left -= take
        return requests

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
        is_sure = self.queue.definition.rate is None and not any(slot.alone for slot in found)
        self._due = {slot.slot: slot for slot in found} if is_sure else {}
        self._rely_until_s = time.monotonic() + RELY_S
        return found

    def _give_back(self, failed: bool = False) -> None:
        IN_PROCESS.end(self._run)
        if self._batch is not None:
            self._batch.give_back(failed=failed)


def _failure(
    delay: Duration | None, reason: str | BaseException | None, bury: bool, charge: bool
) -> Failure:
    if bury and (delay is not None or not charge):
        given = "charge=False" if delay is None else f"delay={delay!r}"
        raise InvalidOption(
            f"rollback got bury=True and {given}. Accepted: one of both; a message in the dead "
            "queue comes again only if it is requeued."
        )
    ending = Ending.BURY if bury else Ending.RETRY if charge else Ending.UNCHARGED
    delay_ms = None if delay is None else parse_delay_ms(delay)
    return Failure(parse_reason(reason), ending, delay_ms)
