"""A consumer in plain Python: take a batch, work, commit."""

import logging
import re
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from types import TracebackType

from rmq_spark.client.consumer_runs import ConsumerRuns
from rmq_spark.client.queue import Queue
from rmq_spark.errors import (
    ConsumerMisused,
    ExclusiveSlot,
    InvalidOption,
    Lost,
    RmqError,
)
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.calls import CALLS_A_PIPELINE
from rmq_spark.protocol.chunks import chunks
from rmq_spark.protocol.claims import MESSAGES_A_CLAIM, Claim, ClaimRequest, Delivered, Rollback
from rmq_spark.protocol.names import ScopedName
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.durations import parse_duration_ms

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 1000
POLL_INTERVAL_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Batch:
    """Messages that a consumer has taken and not yet committed. Iterate over it.

    Any thread may call its methods.
    """

    def __init__(self, consumer: "Consumer", claims: list[Claim]) -> None:
        self._consumer = consumer
        self._messages = [
            message
            for claim in claims
            for message in claim.messages(consumer.queue.definition.type)
        ]
        # What follows is the consumer's, under its lock.
        # By slot and claim: how many messages were not rolled back.
        self._waiting = {(claim.slot, claim.claim_id): len(claim.contents) for claim in claims}
        self._done = not self._messages
        self._unread = False

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def commit(self) -> int:
        """Commit the messages that were not rolled back. Return how many there are.

        A second call changes nothing and returns 0. Raises Lost when the lease of some messages ran
        out and they were given back: all others are committed by then. Raises Lost, too, when the
        whole batch was given back: you took the next one, or closed the consumer.
        """
        return self._consumer.commit(self)

    def rollback(
        self, messages: Iterable[Delivered] | None = None, *, delay: str | None = None
    ) -> int:
        """Roll back ``messages``, or all of the batch; the others still wait for commit.

        They are delivered again, after ``delay`` (such as "30s") or else after the topic's
        backoff, and go to the DeadQueue when no retry is left. Returns how many were rolled back;
        a message whose lease had run out is not among them.
        """
        wait = None if delay is None else parse_duration_ms("delay", delay)
        return self._consumer.rollback(self, self if messages is None else messages, wait)

    def mark_unread(self) -> None:
        """Make this delivery cost no retry, for a consumer that only looks.

        The messages keep their place when they are given back: when you take the next batch, close
        the consumer, or the lease ends. commit then raises ConsumerMisused.
        """
        self._consumer.mark_unread(self)

    def renew(self) -> None:
        """Begin the lease anew, for a batch that takes a long time.

        Raises Lost as commit does: the messages that you still hold have their new lease by then.
        """
        self._consumer.renew(self)


class Consumer:
    """A consumer that takes due messages of a topic, a batch at a time.

    ::

        with broker.consumer("Orders", "billing") as consumer:
            for batch in consumer.batches(limit=100):
                for message in batch:
                    try:
                        bill(message.content)
                    except Exception:
                        batch.rollback([message], delay="30s")
                batch.commit()

    A batch that was not committed when the next is taken, or at the end, is given back. A name
    belongs to one process at a time: a second start takes over from the first, which then fails
    with Superseded. Several names share the messages of a topic; a topic that is exclusive is for
    Spark queries.

    A consumer belongs to one thread at a time. While the batch of one thread is neither committed
    nor given back, no other can take the next: poll raises ConsumerMisused. Open a consumer with a
    name of its own for each thread. Other threads may commit, renew or roll back a batch, and close
    the consumer.
    """

    def __init__(self, open_queue: Callable[[], Queue], name: str, *, lease_ms: int) -> None:
        """Take over the name from an earlier process.

        open_queue: opens the queue with the topic's definition as it is now; called before each
        batch. lease_ms: how long a batch is kept from others, above 0.
        """
        if not _NAME.fullmatch(name):
            raise InvalidOption(
                f"The consumer name {name!r} is not accepted. "
                "Accepted: 1 to 200 of A-Z a-z 0-9 . _ -"
            )
        self._open_queue = open_queue
        self.queue = queue = open_queue()
        refuse_exclusive(queue.definition)
        self.name = name
        self._lease_ms = lease_ms
        # A signal handler that closes the consumer may interrupt one of its calls.
        self._lock = threading.RLock()
        self._claimed_slots: list[int] = []
        self._taken: Batch | None = None
        self._thread = threading.current_thread()  # that took it
        self._closed = False
        scoped = ScopedName(queue.keys.topic, queue.keys.group, name)
        known_run = max(header.run for header in queue.ask(reading.headers, name))
        self._runs = ConsumerRuns(queue.server, str(scoped), queue.key_prefix)
        self._run = self._runs.open(queue.keys.topic, known_run)
        queue.ask(claiming.give_back, queue.slots, name, self._run)
        # Only now: until they were barred, older runs of this name could claim.
        headers = queue.ask(reading.headers, name)
        self._seq = max(max(header.last_seq, header.settled) for header in headers)

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
            _log.warning("rmq: what %s had taken stays taken for its lease: %s", self.name, failure)

    def close(self) -> None:
        """Give back what was not committed: others can take it at once. Any thread may call it."""
        with self._lock:
            self._closed = True
            self._give_back()

    def forget(self) -> None:
        """Close, and delete the name's state in Redis. For a name that is used only once."""
        with self._lock:
            self.close()
            queue = self.queue
            for part in chunks(queue.slots, CALLS_A_PIPELINE):
                queue.server.commands([("HDEL", queue.keys.consumers(s), self.name) for s in part])
            self._runs.forget()

    def batches(self, limit: int = DEFAULT_LIMIT, *, wait: bool = True) -> Iterator[Batch]:
        """Yield batches of up to ``limit`` messages: for ever, or while any is due if not wait.

        Raises ConsumerMisused like poll.
        """
        while True:
            batch = self.poll(limit)
            if batch:
                yield batch
            elif wait:
                time.sleep(POLL_INTERVAL_S)
            else:
                return

    def poll(self, limit: int = DEFAULT_LIMIT) -> Batch:
        """Take up to ``limit`` due messages now; an empty batch when nothing is due.

        Raises ConsumerMisused when another thread works on a batch of this consumer, or the
        consumer is closed.
        """
        if limit < 1:
            raise InvalidOption(f"limit={limit} is not accepted. Accepted: 1 or more.")
        with self._lock:
            self._check_may_poll()
            if self._is_at_work():
                _log.warning(
                    "rmq: a batch of consumer %s was not committed before the next was asked for: "
                    "its messages come again, with a retry less",
                    self.name,
                )
            self._give_back()
            self.queue = self._open_queue()
            refuse_exclusive(self.queue.definition)
            self._taken, self._thread = Batch(self, self._claim(limit)), threading.current_thread()
            return self._taken

    def _check_may_poll(self) -> None:
        if self._closed:
            raise ConsumerMisused(
                f"The consumer {self.name} is closed and takes nothing more. Open a new one."
            )
        caller = threading.current_thread()
        if self._is_at_work() and self._thread is not caller and self._thread.is_alive():
            raise ConsumerMisused(
                f"The consumer {self.name} belongs to one thread at a time: thread {caller.name} "
                f"asks for a batch while the one that thread {self._thread.name} took is neither "
                "committed nor given back. Open a consumer with a name of its own for each thread."
            )

    def _is_at_work(self) -> bool:
        """Return whether messages of the last batch wait for its commit."""
        taken = self._taken
        return taken is not None and not taken._done and any(taken._waiting.values())

    def _claim(self, limit: int) -> list[Claim]:
        due = [
            slot for slot in self.queue.ask(reading.due, self.queue.slots, self.name) if slot.due
        ]
        self._seq += 1
        # Begins at another slot each time, so that a small limit does not starve the last ones.
        start = self._seq % len(due) if due else 0
        requests = []
        for slot in due[start:] + due[:start]:
            take = min(slot.due, limit, MESSAGES_A_CLAIM)
            if take > 0:
                requests.append(ClaimRequest(slot.slot, 0, take))
                limit -= take
        self._claimed_slots = [request.slot for request in requests]
        return self.queue.ask(
            claiming.claim,
            requests,
            consumer=self.name,
            run=self._run,
            seq=self._seq,
            lease_ms=self._lease_ms,
        )

    def commit(self, batch: Batch) -> int:
        """Commit a batch. Return how many messages. Raises Lost as Batch.commit does."""
        with self._lock:
            if batch._done:
                return 0
            self._check_is_taken(batch)
            if batch._unread:
                raise ConsumerMisused(
                    f"The batch of consumer {self.name} is marked unread: it can only be given "
                    "back. Take another batch to commit it."
                )
            # Redis may have fallen back to a state with an earlier batch, which is not finished.
            result = self.queue.ask(
                claiming.commit,
                self._claimed_slots,
                self.name,
                self._run,
                self._seq,
                since=self._seq - 1,
            )
            self._claimed_slots = []
            batch._done = True
            by_lost_reply = sum(
                n for (slot, _), n in batch._waiting.items() if slot in result.again
            )
            done = by_lost_reply + result.committed
            self._check_is_held(batch, result.held | result.again, f"{done} are committed")
            return done

    def rollback(self, batch: Batch, messages: Iterable[Delivered], delay_ms: int | None) -> int:
        """Roll messages back. Return how many. delay_ms None takes the topic's backoff."""
        by_claim: dict[tuple[int, str], list[bytes]] = {}
        for message in messages:
            by_claim.setdefault((message.slot, message.claim_id), []).append(message.content)
        wanted = [
            Rollback(slot, claim_id, contents, delay_ms)
            for (slot, claim_id), contents in by_claim.items()
        ]
        with self._lock:
            rolled_back = [
                result.rolled_back for result in self.queue.ask(claiming.rollback_each, wanted)
            ]
            for claim, how_many in zip(by_claim, rolled_back, strict=True):
                if claim in batch._waiting:  # else the message came with another batch
                    batch._waiting[claim] -= how_many
        return sum(rolled_back)

    def mark_unread(self, batch: Batch) -> None:
        """Make the delivery of a batch cost no retry. Raises Lost if it was given back."""
        with self._lock:
            if batch._done:
                return
            self._check_is_taken(batch)
            self.queue.ask(claiming.unread, self._claimed_slots, self.name, self._run, self._seq)
            batch._unread = True

    def renew(self, batch: Batch) -> None:
        """Begin the lease of a batch anew. Raises Lost as Batch.renew does."""
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
            self._check_is_held(batch, held, "The others have a new lease")

    def _check_is_held(self, batch: Batch, held: Container[int], done: str) -> None:
        """Raise Lost unless all slots with messages that were not rolled back are among held.

        A claim is given back whole, and its record goes with it. One whose messages were all rolled
        back, even by others who have its claimId, stays until its commit.
        """
        lost = sum(n for (slot, _), n in batch._waiting.items() if slot not in held)
        if lost:
            raise Lost(
                f"Consumer {self.name} no longer holds {lost} of {len(batch)} messages of its "
                f"batch: their lease (visibility_timeout, {self._lease_ms} ms) ended, or Redis has "
                "forgotten the claim. Unless the topic was deleted, they come again, here or at "
                f"another consumer, or lie in the dead queue. {done}. Take fewer messages at once, "
                "call renew() in time, or set a longer visibility_timeout."
            )

    def _check_is_taken(self, batch: Batch) -> None:
        """Raise Lost unless the batch is the one taken last and was not given back."""
        if batch is not self._taken:
            raise Lost(
                f"The batch of consumer {self.name} was given back when the next one was taken or "
                "the consumer was closed: its messages come again. Commit before that."
            )

    def _give_back(self) -> None:
        self._taken = None
        if self._claimed_slots:
            self.queue.ask(claiming.give_back, self._claimed_slots, self.name, self._run, self._seq)
            self._claimed_slots = []


def refuse_exclusive(topic: TopicDefinition) -> None:
    """Raise ExclusiveSlot for a topic whose slots have owners, one consumer each."""
    if topic.exclusive:
        raise ExclusiveSlot(
            f"The topic {topic.name} is exclusive: only queries that own its slots may read it. "
            "Use a Spark query with zookeeper.hosts, or end that with "
            f"broker.alter({topic.name!r}, exclusive=False)."
        )
