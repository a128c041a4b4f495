"""A consumer in plain Python: take a batch, work, commit."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from rmq_spark.queue.claims import MESSAGES_A_CLAIM, Claim, ClaimRequest, Delivered, Rollback
from rmq_spark.queue.durations import parse_duration_ms
from rmq_spark.queue.errors import ExclusiveSlot, InvalidOption, Lost, RmqError
from rmq_spark.queue.queue import Queue
from rmq_spark.queue.topic import TopicDefinition

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 1000
POLL_INTERVAL_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Batch:
    """Messages that were taken and wait to be committed. Iterate over it."""

    def __init__(self, consumer: "Consumer", claims: list[Claim]) -> None:
        self._consumer = consumer
        self._messages = [
            message
            for claim in claims
            for message in claim.messages(consumer.queue.definition.type)
        ]

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def commit(self) -> int:
        """What was not rolled back is done. Returns how many messages that were.

        Raises Lost when the batch was given back: the next was taken, or the consumer closed.
        """
        return self._consumer.commit(self)

    def rollback(
        self, messages: Iterable[Delivered] | None = None, *, delay: str | None = None
    ) -> int:
        """Rolls messages back, all without ``messages``; the others still wait for commit.

        They are delivered again, after ``delay`` (such as "30s") or else after the topic's
        backoff, and go to the DeadQueue when no retry is left. Returns how many were rolled back;
        a message whose lease had run out is not among them.
        """
        wait = None if delay is None else parse_duration_ms("delay", delay)
        by_claim: dict[tuple[int, str], list[bytes]] = {}
        for message in self._messages if messages is None else messages:
            by_claim.setdefault((message.slot, message.claim_id), []).append(message.content)
        queue = self._consumer.queue
        return queue.rollbacks(
            Rollback(slot, claim_id, contents, wait)
            for (slot, claim_id), contents in by_claim.items()
        ).rolled_back

    def renew(self) -> None:
        """Begins the lease anew: for a batch that takes long. Raises Lost like commit."""
        self._consumer.renew(self)


class Consumer:
    """Takes due messages of a topic, a batch at a time.

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
    """

    def __init__(self, open_queue: Callable[[], Queue], name: str, *, lease_ms: int) -> None:
        """Takes over the name.

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
        self._claimed_slots: list[int] = []
        self._taken: Batch | None = None
        headers = queue.headers(name)
        # People choose names, so another topic or group may have a consumer of the same one.
        scoped = scoped_name(queue.keys.topic, queue.keys.group, name)
        self._run = queue.open_run(scoped, max(header.run for header in headers))
        self._seq = max(max(header.last_seq, header.settled) for header in headers)
        # Bars older runs of this name, then lets go what they left.
        queue.replay(name, self._run, self._seq, self._seq, lease_ms)
        queue.release(queue.slots, name, self._run)

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
        """Gives back what was not committed."""
        self._give_back()

    def batches(self, limit: int = DEFAULT_LIMIT, *, wait: bool = True) -> Iterator[Batch]:
        """Batches of up to ``limit`` messages: for ever, or while something is due if not wait."""
        while True:
            batch = self.poll(limit)
            if batch:
                yield batch
            elif wait:
                time.sleep(POLL_INTERVAL_S)
            else:
                return

    def poll(self, limit: int = DEFAULT_LIMIT) -> Batch:
        """Takes up to ``limit`` due messages now; an empty batch when nothing is due."""
        if limit < 1:
            raise InvalidOption(f"limit={limit} is not accepted. Accepted: 1 or more.")
        if self._taken and self._claimed_slots:
            _log.warning(
                "rmq: a batch of consumer %s was not committed before the next was asked for: its "
                "messages come again, with a retry less",
                self.name,
            )
        self._give_back()
        self.queue = self._open_queue()
        refuse_exclusive(self.queue.definition)
        claims = [] if self.queue.definition.paused else self._claim(limit)
        self._taken = Batch(self, claims)
        return self._taken

    def _claim(self, limit: int) -> list[Claim]:
        due = [slot for slot in self.queue.due(self.queue.slots, self.name) if slot.due]
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
        return self.queue.claim(
            requests, consumer=self.name, run=self._run, seq=self._seq, lease_ms=self._lease_ms
        )

    def commit(self, batch: Batch) -> int:
        """Commits a batch. Returns how many messages. Raises Lost as Batch.commit does."""
        self._check_is_taken(batch)
        settled = self.queue.commit(self._claimed_slots, self.name, self._run, self._seq)
        self._claimed_slots = []
        return settled.committed

    def renew(self, batch: Batch) -> None:
        """Begins the lease of a batch anew. Raises Lost as Batch.commit does."""
        self._check_is_taken(batch)
        self.queue.renew(self._claimed_slots, self.name, self._run, self._lease_ms)

    def _check_is_taken(self, batch: Batch) -> None:
        """Raises Lost unless the batch is the one taken last and was not given back."""
        if batch is not self._taken:
            raise Lost(
                f"The batch of consumer {self.name} was given back when the next one was taken or "
                "the consumer was closed: its messages come again. Commit before that."
            )

    def _give_back(self) -> None:
        self._taken = None
        if self._claimed_slots:
            self.queue.release(self._claimed_slots, self.name, self._run)
            self._claimed_slots = []


def refuse_exclusive(topic: TopicDefinition) -> None:
    """Raises ExclusiveSlot for a topic whose slots are owned, one consumer each."""
    if topic.exclusive:
        raise ExclusiveSlot(
            f"The topic {topic.name} is exclusive: only queries that own its slots may read it. "
            "Use a Spark query with zookeeper.hosts, or end that with "
            f"broker.alter({topic.name!r}, exclusive=False)."
        )


def scoped_name(topic: str, group: str, name: str) -> str:
    """The name under which the runs of a plain consumer are counted."""
    return f"{topic}@{group}:{name}"
