"""A batch of messages that a consumer in plain Python has taken."""

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from rmq_spark.client.tracing import LoopSpans
from rmq_spark.errors import ConsumerMisused, Lost
from rmq_spark.protocol.claims import Claim, Delivered
from rmq_spark.topics.durations import Duration, parse_wait_ms
from rmq_spark.topics.reasons import parse_reason

if TYPE_CHECKING:
    from rmq_spark.client.receiving.consumer import Consumer


class Batch:
    """Messages that a consumer has taken and not yet committed. Iterate over it.

    Any thread can call its methods.
    """

    def __init__(self, consumer: "Consumer", claims: list[Claim]) -> None:
        self._consumer = consumer
        self._messages = [
            message for claim in claims for message in claim.messages(consumer.queue.definition)
        ]
        self._spans = LoopSpans(self._messages, consumer.queue.keys.group)
        # The consumer uses the attributes below, under its lock.
        # The number of messages that were not rolled back, by slot and claim.
        self._waiting = {(claim.slot, claim.claim_id): len(claim.contents) for claim in claims}
        self._done = not self._messages
        self._unread = False

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._messages)

    def commit(self) -> int:
        """Commit the messages that were not rolled back. Return their number.

        A second call changes nothing and returns 0. Raises Lost if the lease of some messages
        expired and they were given back; all others are then committed. Also raises Lost if the
        whole batch was given back because you took the next one or closed the consumer. Raises
        ConsumerMisused if the batch is marked as unread.
        """
        return self._consumer.commit(self)

    def rollback(
        self,
        messages: Iterable[Delivered] | None = None,
        *,
        delay: Duration | None = None,
        reason: str | BaseException | None = None,
    ) -> int:
        """Roll back ``messages``, or the whole batch. The other messages still wait for commit.

        Messages are redelivered after ``delay`` (such as "30s"; a timedelta; ms), or after the
        topic's backoff if delay is None. A message without a retry left moves to the dead queue,
        which keeps the first 500 characters of ``reason``. Returns how many were rolled back;
        messages whose lease has expired are not counted.
        """
        wait = None if delay is None else parse_wait_ms("delay", delay)
        wanted = self._messages if messages is None else list(messages)
        text = parse_reason(reason)
        self._spans.mark_failed(wanted, reason)
        return self._consumer.rollback(self, wanted, wait, text)

    def mark_unread(self) -> None:
        """Mark the batch as unread, so that it costs no retry. For a consumer that only looks.

        The messages return to their places when they are given back: when you take the next batch,
        when you close the consumer, or when the lease expires. commit and rollback then raise
        ConsumerMisused. Raises Lost if the batch was given back.
        """
        self._consumer.mark_unread(self)

    def renew(self) -> None:
        """Renew the lease, for a batch that takes a long time.

        Raises Lost like commit; the messages that you still hold then have the new lease.
        """
        self._consumer.renew(self)

    # -- called by the consumer, under its lock

    def _refuse_unread(self, done: str) -> None:
        """Raise ConsumerMisused if the batch is marked unread. done: what the caller asks."""
        if self._unread:
            raise ConsumerMisused(
                f"The batch of consumer {self._consumer.name} is marked unread: it can only be "
                f"given back. Take another batch to {done}."
            )

    def _check_is_held(self, held: Container[int], lease_ms: int, done: str) -> None:
        """Raise Lost unless every slot with messages that were not rolled back is in ``held``.

        A claim is always given back as a whole, and its record is deleted. A claim whose messages
        were all rolled back, even by others who have its claimId, keeps its record until its
        commit. done: a sentence for the error about the messages that are not lost.
        """
        lost = sum(n for (slot, _), n in self._waiting.items() if slot not in held)
        if lost:
            raise Lost(
                f"Consumer {self._consumer.name} no longer holds {lost} of {len(self)} messages of "
                f"its batch: their lease (visibility_timeout, {lease_ms} ms) ended, or Redis has "
                "forgotten the claim. Unless the topic was deleted, they come again, here or at "
                f"another consumer, or are in the dead queue. {done}. Take fewer messages at once, "
                "call renew() in time, or set a longer visibility_timeout."
            )
