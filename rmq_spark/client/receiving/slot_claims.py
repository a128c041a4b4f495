"""The claims of a listener in Redis: one at a time in each slot, each committed by itself."""

import itertools
import logging
import threading
from collections.abc import Container, Iterable, Mapping

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.sessions import Session
from rmq_spark.client.receiving.slot_work import SlotWork
from rmq_spark.errors import Settled
from rmq_spark.protocol import claiming, returning
from rmq_spark.protocol.claims import ClaimRequest, Delivered, Rollback, RollbackResult, SlotDue
from rmq_spark.protocol.names import claim_name
from rmq_spark.topics.durations import duration_text

_log = logging.getLogger(__name__)

# The messages of a claim are worked on one after another. If the process is killed, each of them
# loses a retry, also those that were not begun; so a claim is small. A claim that took too long is
# followed by a smaller one.
MESSAGES_A_CLAIM = 256
# Why a message is rolled back whose function has not returned within the grace of a stop.
_STOPPED = "given back"


class SlotClaims:
    """Makes claims, returns single messages of them, and commits them. All raise an RmqError.

    queue: as last read. epochs: the slots to claim from, with their epochs. delay_ms: the wait
    before the retry of a message; None for the topic's backoff. works: the claims in work, by slot.
    """

    def __init__(self, queue: Queue, session: Session, lease_ms: int, delay_ms: int | None) -> None:
        self.queue = queue
        self.epochs: Mapping[int, int | None] = {}
        self._session = session
        self._lease_ms, self._delay_ms = lease_ms, delay_ms
        # Messages of the next claim, by slot. Quick messages of one slot do not speak for another.
        self._limits: dict[int, int] = {}
        self._numbers = itertools.count(session.last_seq + 1)
        self.works: dict[int, SlotWork] = {}
        # The numbers of claims that nobody has got, by slot: they are asked for, or have failed.
        self._asked: dict[int, int] = {}
        self._dropped: list[SlotWork] = []
        self._lock, self._is_closed = threading.Lock(), False  # for who takes and who closes

    def take(self, slot: SlotDue) -> SlotWork:
        """Claim due messages of a slot. Raises Settled if the claims are closed."""
        queue, session = self.queue, self._session
        with self._lock:
            if self._is_closed:
                raise Settled(f"Listener {session.name} has stopped.")
            number = self._asked[slot.slot] = next(self._numbers)
        terms = claiming.Claiming(
            session.name, session.run, number, self._lease_ms, epochs=self.epochs
        )
        request = ClaimRequest(slot.slot, 0, self._limit_of(slot.slot), others=slot.live)
        (claim,) = queue.ask(claiming.claim, [request], terms)
        try:
            work = SlotWork(claim, list(claim.messages(queue.definition)))
        except Exception:
            del self._asked[slot.slot]  # what cannot be read costs a retry, and dies in the end
            raise
        with self._lock:
            self.works[slot.slot] = work
            if not self._is_closed:  # else who has closed gives it back
                del self._asked[slot.slot]
        return work

    def drop(self, work: SlotWork) -> None:
        """Leave a claim alone, after an error: its messages come again when its lease ends.

        Those that were not begun come again earlier, at no cost.
        """
        self._dropped.append(work)
        self.works.pop(work.slot, None)

    def close(self) -> None:
        """Take nothing more. Claims that are asked for now count as got by nobody."""
        with self._lock:
            self._is_closed = True

    def give_back_failed(self, at_work: Container[int]) -> None:
        """Give back, at no cost, what nobody has got of claims that failed.

        at_work: the slots that workers have, whose claims have not failed.
        """
        while self._dropped:
            self._give_back_rests(self._dropped[:1])
            del self._dropped[0]
        session = self._session
        for slot, number in self._asked.copy().items():
            if slot not in at_work:
                self._disown(slot, number)
                self.queue.ask(returning.give_back, [slot], session.name, session.run, number)
                del self._asked[slot]

    def _disown(self, slot: int, number: int) -> None:
        """Mark a claim that nobody has got as unread, or refuse it if it arrives only now."""
        name, run = self._session.name, self._session.run
        # A commit of no claim. From here on, Redis refuses this one, so that none is overlooked.
        self.queue.ask(claiming.commit, [slot], name, run, number, since=number)
        self.queue.ask(claiming.unread, [slot], name, run, number)

    def _give_back_rests(self, works: Iterable[SlotWork]) -> None:
        """Give back the messages that were not begun, at no cost."""
        wanted = [
            Rollback(work.slot, work.claim_id, [message.name for message in rest], unread=True)
            for work in works
            if (rest := work.rest())
        ]
        if wanted:
            self.queue.ask(returning.rollbacks, wanted)

    def roll_back(self, work: SlotWork, message: Delivered, reason: str) -> RollbackResult:
        """Roll back one message, whose function has failed."""
        wanted = Rollback(work.slot, work.claim_id, [message.name], self._delay_ms, [reason])
        result = self.queue.ask(returning.rollbacks, [wanted])
        work.failed = None
        return result

    def hand_back(self, work: SlotWork, message: Delivered | None) -> None:
        """End a claim that was taken away from its thread.

        message: the one whose function has not returned, which is given back without a wait. A
        rollback by that thread may still be on its way: another one of the same message does no
        harm.
        """
        if failed := work.failed:
            self.roll_back(work, *failed)
        if message is not None:
            wanted = Rollback(work.slot, work.claim_id, [message.name], 0, [_STOPPED])
            self.queue.ask(returning.rollbacks, [wanted])
        self.commit(work)

    def commit(self, work: SlotWork) -> None:
        """Give back the messages that were not begun, at no cost, and commit the others."""
        self._set_limit(work, len(work.rest()))
        self._give_back_rests([work])
        session = self._session
        result = self.queue.ask(
            claiming.commit,
            [work.slot],
            session.name,
            session.run,
            work.seq,
            since=work.seq - 1,
            expected={work.slot: [claim_name(session.name, work.seq, 0)]},
        )
        if len(work) and work.slot not in result.held | result.again:
            _log.warning(
                "rmq: listener %s lost a claim of slot %d before its commit: its messages come "
                "again. Redis was away for longer than visibility_timeout (%s)",
                *(session.name, work.slot, duration_text(self._lease_ms)),
            )
        self.works.pop(work.slot, None)

    def _set_limit(self, work: SlotWork, rest: int) -> None:
        """Let the slot's next claim take about as many messages as can be worked on in its time."""
        if rest:
            self._limits[work.slot] = max(1, len(work) - rest)
        elif work.is_quick:
            self._limits[work.slot] = min(2 * self._limit_of(work.slot), MESSAGES_A_CLAIM)

    def _limit_of(self, slot: int) -> int:
        return self._limits.get(slot, MESSAGES_A_CLAIM)

    def renew(self, works: Iterable[SlotWork]) -> None:
        """Renew the leases of these claims, and of no other."""
        name, run = self._session.name, self._session.run
        for work in works:
            since = work.seq - 1
            self.queue.ask(claiming.renew, [work.slot], name, run, self._lease_ms, since=since)

    def give_back(self) -> None:
        """Give back all claims that are left, and bar claims that arrive late.

        What nobody has got is given back at no cost.
        """
        self._give_back_rests([*self._dropped, *self.works.copy().values()])
        for slot, number in self._asked.copy().items():
            self._disown(slot, number)
        session, last = self._session, next(self._numbers)
        queue = self.queue
        queue.ask(returning.give_back, queue.slots, session.name, session.run, last)
