"""A batch of a consumer: messages that were taken, and what can be done with them."""

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.consumer_run import ConsumerRun
from rmq_spark.client.receiving.work_in_process import IN_PROCESS
from rmq_spark.client.tracing import LoopSpans
from rmq_spark.errors import ConsumerMisused, InvalidOption, LeaseLost
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import Claim, Columns, Delivered, messages_of
from rmq_spark.topics.parsing import Duration
from rmq_spark.topics.reasons import parse_reason
from rmq_spark.topics.verdicts import Ending, Failure, parse_delay_ms


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

    def give_back(self, *, failed: bool = False, unread: bool = False) -> None:
        """Give it back. failed: whether an error ends the work. unread: at no cost.

        It costs nothing either if nobody has got it.
        """
        self._is_given_back = True
        if self._slots:
            if unread and self._is_seen:
                self._run.mark_unread(self._queue, self._slots, self._seq)
            if self._is_seen:
                self._run.give_back(self._queue, self._slots, self._seq, failed=failed)
            else:
                self._run.give_back_unread(self._queue, self._slots, self._seq)
            self._slots = ()

    def _check_is_taken(self) -> None:
        if self._is_given_back:
            raise LeaseLost(
                f"The batch of consumer {self._run.name} was given back when the next one was "
                "taken or the consumer was closed: they are redelivered. Commit before that."
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
                "the claim. Unless the topic was deleted, they are redelivered, here or at another "
                f"consumer, or are in the dead queue. {done}. Take fewer messages at once, call "
                "renew() in time, or set a longer visibility_timeout."
            )


def _failure(
    delay: Duration | None, reason: str | BaseException | None, bury: bool, charge: bool
) -> Failure:
    if bury and (delay is not None or not charge):
        given = "charge=False" if delay is None else f"delay={delay!r}"
        raise InvalidOption(
            f"rollback got bury=True and {given}. Accepted: one of both; a message in the dead "
            "queue is redelivered only if it is requeued."
        )
    ending = Ending.BURY if bury else Ending.RETRY if charge else Ending.UNCHARGED
    delay_ms = None if delay is None else parse_delay_ms(delay)
    return Failure(parse_reason(reason), ending, delay_ms)
