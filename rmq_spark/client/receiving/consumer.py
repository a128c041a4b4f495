"""The consumer for plain Python: take a batch, work, commit."""

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType

from rmq_spark.client.process_lock import ProcessLock
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.batch import Batch
from rmq_spark.client.receiving.sessions import open_session
from rmq_spark.client.receiving.waiting import Waiter
from rmq_spark.errors import ConsumerMisused, Lost, RmqError
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.protocol import claiming, reading, returning
from rmq_spark.protocol.calls import CALLS_A_PIPELINE
from rmq_spark.protocol.chunks import chunks
from rmq_spark.protocol.claims import (
    MESSAGES_A_CLAIM,
    Claim,
    ClaimRequest,
    Delivered,
    Rollback,
    SlotDue,
)
from rmq_spark.protocol.names import claim_name
from rmq_spark.topics.durations import Duration, parse_wait_ms
from rmq_spark.topics.parsers import check_amount

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 1000
# How often a consumer that waits looks whether its topic is still there.
REFRESH_S = 1.0
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
    fails with Superseded. Consumers with different names share the messages of a topic. With
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
        self._lease_ms = lease_ms
        self._refreshed_s = time.monotonic()
        # Reentrant: a signal handler that closes the consumer may interrupt one of its calls.
        self._lock = ProcessLock(queue.server.new_lock(), name)
        self._claimed_slots: list[int] = []
        self._unseen = False  # whether nobody has got what is claimed in these slots
        self._taken: Batch | None = None
        self._caller = queue.server.caller()  # who took the batch
        self._closed = False
        self._waiter: Waiter | None = None  # from the first wait on
        self._may_be_quick = True
        session = open_session(queue, name, ensemble)
        self._run, self._seq, self._runs = session.run, session.last_seq, session.runs
        self._ownership = session.ownership
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
            self.close()
        except RmqError as failure:
            if error is None:
                raise
            _log.warning("rmq: %s keeps its messages until the lease ends: %s", self.name, failure)

    def close(self) -> None:
        """Close the consumer and give back its uncommitted messages, for others to take at once.

        Any thread can call it. In a copy of the process, which was forked, it does nothing.
        """
        if self._lock.is_copy:
            return
        with self._lock:
            self._closed = True
            if self._waiter is not None:
                self._waiter.close()
            try:
                self._give_back()
            finally:
                self._ownership.stop()

    def forget(self) -> None:
        """Close the consumer and delete its state in Redis. For a name that is used only once."""
        with self._lock:
            self.close()
            queue = self.queue
            for part in chunks(queue.slots, CALLS_A_PIPELINE):
                queue.server.commands([("HDEL", queue.keys.consumers(s), self.name) for s in part])
            self._runs.forget()

    def batches(self, limit: int = DEFAULT_LIMIT, *, wait: bool = True) -> Iterator[Batch]:
        """Yield batches of up to ``limit`` messages.

        wait: whether to wait for messages when nothing is due, instead of ending. Raises
        ConsumerMisused like poll.
        """
        while True:
            batch = self.poll(limit, wait=_FOREVER if wait else 0)
            if not batch:
                return
            yield batch

    def poll(self, limit: int = DEFAULT_LIMIT, *, wait: Duration = 0) -> Batch:
        """Take up to ``limit`` due messages. The batch is empty if nothing is due.

        wait: how long to wait for messages if nothing is due, such as "20s". Gives back the last
        batch if it is not committed. Raises ConsumerMisused if another thread works on a batch of
        this consumer, or if the consumer is closed, also while it waits.
        """
        check_amount("limit", limit)
        wait_s = parse_wait_ms("wait", wait) / 1000
        return self._poll_and_wait(limit, wait_s) if wait_s else self._poll(limit, None)

    def _poll_and_wait(self, limit: int, wait_s: float) -> Batch:
        fruitless = 0
        ends_s = time.monotonic() + wait_s
        while True:
            waiter = self._open_waiter()
            waiter.look_if_time(self.queue)
            ripe = waiter.ripe()
            batch = self._poll(limit, ripe)
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

    def _poll(self, limit: int, ripe: list[int] | None) -> Batch:
        """Take due messages of ripe slots, or of all. Without any, the batch is empty."""
        with self._lock:
            self._check_may_poll()
            if self._is_at_work() and not (self._taken and self._taken._unread):
                _log.warning(
                    "rmq: consumer %s takes a new batch before it has committed the last one, so "
                    "those messages come again with one retry less",
                    self.name,
                )
            self._give_back()
            self._refresh(at_once=ripe is None)
            self._epochs = self._ownership.between_batches()
            if self._waiter is not None:
                self._waiter.read_only(self._epochs)
            try:
                claims = self._claim_some(limit, ripe)
            except RmqError:
                self._check_may_poll()  # a signal handler may have closed it amid this call
                raise
            if self._closed:
                self._give_back()
            self._check_may_poll()
            self._unseen = False  # also what cannot be read costs a retry, and dies in the end
            batch, caller = Batch(self, claims), self.queue.server.caller()
            self._check_may_poll()
            self._taken, self._caller = batch, caller
            return batch

    def _claim_some(self, wanted: int, ripe: list[int] | None) -> list[Claim]:
        """Claim due messages, and drop what has expired on the way to them."""
        claims = self._claim(wanted, ripe)
        while any(claim.expired for claim in claims) and not any(c.contents for c in claims):
            self._give_back()  # the claims are empty
            claims = self._claim(wanted, ripe)
        return claims

    def _refresh(self, *, at_once: bool) -> None:
        """Read the topic's definition again, at once or if it is a second old."""
        now = time.monotonic()
        if at_once or now >= self._refreshed_s + REFRESH_S:
            self.queue = self._open_queue()
            self._ownership.check(self.queue.definition)
            self._refreshed_s = now

    def _check_may_poll(self) -> None:
        if self._closed:
            raise ConsumerMisused(
                f"The consumer {self.name} is closed and takes nothing more. Open a new one."
            )
        caller = self.queue.server.caller()
        if self._is_at_work() and caller != self._caller and self._caller.is_alive():
            kind = caller.kind
            raise ConsumerMisused(
                f"Two {kind}s use the consumer {self.name}: {kind} {caller.name} asks for a batch, "
                f"but {kind} {self._caller.name} has neither committed nor given back its own. "
                f"Open one consumer for each {kind}, each with another name."
            )

    def _is_at_work(self) -> bool:
        """Check whether messages of the last batch wait for its commit."""
        taken = self._taken
        return taken is not None and not taken._done and any(taken._waiting.values())

    def _claim(self, wanted: int, ripe: list[int] | None) -> list[Claim]:
        looked = self._epochs if ripe is None else self._epochs.keys() & set(ripe)
        requests = self._quick_request(wanted, list(looked))
        if not requests:
            requests = self._requests(wanted, sorted(looked))
        self._seq += 1
        self._unseen, self._claimed_slots = True, [request.slot for request in requests]
        owned = self._epochs
        terms = claiming.Claiming(self.name, self._run, self._seq, self._lease_ms, epochs=owned)
        claims = self.queue.ask(claiming.claim, requests, terms)
        # If others were faster, the next request looks first, which costs Redis less.
        if requests:
            self._may_be_quick = any(claim.contents for claim in claims)
        return claims

    def _quick_request(self, wanted: int, ripe: Sequence[int]) -> list[ClaimRequest]:
        """Return the claim of a message that a wake-up has told of, or none.

        It saves a round trip.
        """
        sure = None if self._waiter is None else self._waiter.sure_of(ripe)
        if sure is None or not self._may_be_quick:
            return []
        return [ClaimRequest(sure, 0, min(wanted, MESSAGES_A_CLAIM))]

    def _requests(self, wanted: int, slots: Sequence[int]) -> list[ClaimRequest]:
        """Return the claims of what a look finds due in some slots."""
        due = self._due_slots(slots)
        # Starts at another slot each time, so that a small limit does not starve the last slots.
        start = (self._seq + 1) % len(due) if due else 0
        requests, left = [], wanted
        for slot in due[start:] + due[:start]:
            take = min(slot.due, left, MESSAGES_A_CLAIM)
            if take:
                requests.append(ClaimRequest(slot.slot, 0, take, others=slot.live))
                left -= take
        return requests

    def _due_slots(self, slots: Sequence[int]) -> list[SlotDue]:
        """Return those of some slots with due messages, after expired claims were given back."""
        due = self.queue.ask(reading.due, slots, self.name, epochs=self._epochs)
        if self.queue.ask(returning.give_back_expired, due, self.name):
            due = self.queue.ask(reading.due, slots, self.name, epochs=self._epochs)
        if self._waiter is not None:
            self._waiter.looked(due)
        return [slot for slot in due if slot.due]

    def commit(self, batch: Batch) -> int:
        """Commit a batch. Return the number of messages. Raises Lost like Batch.commit."""
        with self._lock:
            if batch._done:
                return 0
            self._check_is_taken(batch)
            batch._refuse_unread("commit it")
            # No earlier batch: if Redis has lost writes, it may hold an unfinished one again.
            name = claim_name(self.name, self._seq, 0)
            result = self.queue.ask(
                claiming.commit,
                self._claimed_slots,
                self.name,
                self._run,
                self._seq,
                since=self._seq - 1,
                expected={slot: [name] for slot in self._claimed_slots},
            )
            self._claimed_slots = []
            batch._done = True
            waiting = batch._waiting.items()
            done = result.committed + sum(n for (slot, _), n in waiting if slot in result.again)
            held = result.held | result.again
            batch._check_is_held(held, self._lease_ms, f"{done} are committed")
            return done

    def rollback(
        self, batch: Batch, messages: Iterable[Delivered], delay_ms: int | None, reason: str = ""
    ) -> int:
        """Roll back messages. Return their number. delay_ms: None for the topic's backoff."""
        by_claim: dict[tuple[int, str], list[bytes]] = {}
        for message in messages:
            by_claim.setdefault((message.slot, message.claim_id), []).append(message.name)
        wanted = [Rollback(*claim, held, delay_ms, [reason]) for claim, held in by_claim.items()]
        with self._lock:
            batch._refuse_unread("roll messages of it back")
            rolled_back = [
                result.rolled_back for result in self.queue.ask(returning.rollback_each, wanted)
            ]
            for claim, how_many in zip(by_claim, rolled_back, strict=True):
                if claim in batch._waiting:  # else the message came with another batch
                    batch._waiting[claim] -= how_many
        return sum(rolled_back)

    def mark_unread(self, batch: Batch) -> None:
        """Mark a batch as unread, so that it costs no retry. Raises Lost if it was given back."""
        with self._lock:
            if batch._done:
                return
            self._check_is_taken(batch)
            self.queue.ask(claiming.unread, self._claimed_slots, self.name, self._run, self._seq)
            batch._unread = True

    def renew(self, batch: Batch) -> None:
        """Renew the lease of a batch. Raises Lost like Batch.renew."""
        with self._lock:
            if batch._done:
                return
            self._check_is_taken(batch)
            renewed = self.queue.ask(
                claiming.renew,
                self._claimed_slots,
                self.name,
                self._run,
                self._lease_ms,
                since=self._seq - 1,
            )
            held = {slot for slot, claims in renewed.items() if claims}
            batch._check_is_held(held, self._lease_ms, "The others have a new lease")

    def _check_is_taken(self, batch: Batch) -> None:
        """Raise Lost unless the batch is the last one taken and was not given back."""
        if batch is not self._taken:
            raise Lost(
                f"The batch of consumer {self.name} was given back when the next one was taken or "
                "the consumer was closed: its messages come again. Commit before that."
            )

    def _give_back(self) -> None:
        """Give back the last poll's messages. It costs no retry if the poll was broken off."""
        self._taken = None
        if slots := self._claimed_slots:
            if self._unseen:
                self.queue.ask(claiming.unread, slots, self.name, self._run, self._seq)
            self.queue.ask(returning.give_back, slots, self.name, self._run, self._seq)
            self._claimed_slots = []
