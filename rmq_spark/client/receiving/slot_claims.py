"""The claims of a listener in Redis: one at a time in each slot, each committed by itself."""

import itertools
import math
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.consumer_run import ConsumerRun, within_rate
from rmq_spark.errors import AlreadyCommitted
from rmq_spark.process import UnfailingLog
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import (
    Claim,
    ClaimRequest,
    Delivered,
    Rollback,
    RollbackResult,
    SlotDue,
)
from rmq_spark.topics.parsing import duration_text
from rmq_spark.topics.verdicts import Ending, Failure

_log = UnfailingLog(__name__)

# The messages of a claim are worked on one after another. If the process is killed, all of them
# are redelivered, even those that are done; so a claim is small. A claim that took too long is
# followed by a smaller one, and a quick one by one of twice the size. How long the calls take is
# not known before the first one.
FIRST_CLAIM, LARGEST_CLAIM = 1, 256
# Of a message whose function has not returned within the grace of a stop.
_STOPPED = Failure("given back", delay_ms=0)
# How long a claim is worked on before the rest of it is given back. A more urgent message that
# arrives meanwhile waits so long, and other slots with due messages do, too.
_LONGEST_S = 1.0


class SlotWork:
    """The messages of one claim, and how far a thread has come with them.

    A thread that hangs in a message can be given up: another goes on behind that message.

    asked_s, claimed_s: when the claim was asked for, and when its answer came, by the monotonic
    clock. limit: the most messages that were asked for. began_s: when the running call began.
    failed: a message whose function has failed, until it is rolled back. A commit before that would
    lose it.
    """

    def __init__(
        self,
        claim: Claim,
        messages: Sequence[Delivered],
        limit: int,
        asked_s: float,
        claimed_s: float,
    ) -> None:
        self.slot = claim.slot
        self.seq = claim.seq
        self.claim_id = claim.claim_id
        # Whether the claim has taken anything out of the store, be it expired.
        self.took_any = bool(messages or claim.expired)
        self._messages = messages
        self.limit = limit
        self.asked_s, self.claimed_s = asked_s, claimed_s
        self._lock = threading.Lock()
        self._owner: object = None
        self._at = 0
        self.began_s: float | None = None
        self.failed: tuple[Delivered, Failure] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def own(self, owner: object) -> None:
        with self._lock:
            self._owner = owner

    def begin(self, owner: object) -> Delivered | None:
        """Return the next message; None behind the last one, or for a thread that was given up."""
        with self._lock:
            if self._owner is not owner or self._at == len(self._messages):
                return None
            self.began_s = time.monotonic()
            return self._messages[self._at]

    def end(self, owner: object, failure: Failure | None = None) -> bool:
        """Note that a thread is done with its message. Returns False if it was given up."""
        with self._lock:
            if self._owner is not owner:
                return False
            message = self._pass()
            if failure is not None:
                self.failed = message, failure
            return True

    def is_owned_by(self, owner: object) -> bool:
        with self._lock:
            return self._owner is owner

    def give_up(self, timeout_s: float, failure: Failure) -> Delivered | None:
        """Take the messages from a thread that is at one for too long; return that one."""
        with self._lock:
            began_s = self.began_s
            if began_s is None or time.monotonic() - began_s <= timeout_s:
                return None
            self._owner = None
            message = self._pass()
            self.failed = message, failure
            return message

    def take_away(self) -> Delivered | None:
        """Take the messages from their thread. Returns the one whose function has not returned."""
        with self._lock:
            self._owner = None
            return None if self.began_s is None else self._pass()

    def _pass(self) -> Delivered:
        self.began_s = None
        self._at += 1
        return self._messages[self._at - 1]

    @property
    def is_through(self) -> bool:
        return self._at == len(self._messages)

    @property
    def is_over(self) -> bool:
        """Whether the time for the claim is over. At least one message is worked on."""
        return self._at > 0 and time.monotonic() - self.claimed_s > _LONGEST_S

    @property
    def is_quick(self) -> bool:
        return time.monotonic() - self.claimed_s < _LONGEST_S / 2

    def rest(self) -> Sequence[Delivered]:
        with self._lock:
            is_in_call = self.began_s is not None
            return self._messages[self._at + is_in_call :]


class SlotClaims:
    """Makes claims, returns single messages of them, and commits them. works: those in progress."""

    def __init__(self, queue: Queue, run: ConsumerRun, delay_ms: int | None) -> None:
        self.queue = queue
        self.epochs: Mapping[int, int | None] = {}
        self._run = run
        self._delay_ms = delay_ms
        # Messages of the next claim, by slot; and of the first one of any other slot, as the last
        # claim of this listener has shown. Quick messages of one slot do not speak for another.
        self._limits: dict[int, int] = {}
        self._first_limit = FIRST_CLAIM
        self._numbers = itertools.count(run.last_seq + 1)
        self.works: dict[int, SlotWork] = {}
        # The numbers of claims that nobody has got, by slot: they are asked for, or have failed.
        self._asked: dict[int, int] = {}
        self._failed: list[SlotWork] = []
        self._held_s = -math.inf  # when a function last held the group, by the monotonic clock
        self._holds = 0  # those that are on their way to Redis
        self._lock, self._is_closed = threading.Lock(), False  # for who takes and who closes

    def take(self, slot: SlotDue) -> SlotWork | None:
        """Claim due messages of a slot; alone if nothing else is in progress.

        Returns None if the topic's rate allows no message now.
        """
        queue, run = self.queue, self._run
        limit = 1 if slot.alone else self._limit_of(slot.slot)
        wanted = [ClaimRequest(slot.slot, 0, limit, others=slot.live, alone=slot.alone)]
        with within_rate(queue, wanted) as (requests, claims):
            if not requests:
                return None
            with self._lock:
                if self._is_closed:
                    raise AlreadyCommitted(f"Listener {run.name} has stopped.")
                number = self._asked[slot.slot] = next(self._numbers)
            asked_s = time.monotonic()
            claims += run.claim(queue, requests, number, self.epochs)
            claimed_s = time.monotonic()
        [claim] = claims
        try:
            messages = list(claim.messages(queue.definition))
            work = SlotWork(claim, messages, limit, asked_s, claimed_s)
        except Exception:
            del self._asked[slot.slot]  # what cannot be read costs a retry, and dies in the end
            raise
        with self._lock:
            self.works[slot.slot] = work
            if not self._is_closed:  # else who has closed gives it back
                del self._asked[slot.slot]
        return work

    def give_back_soon(self, work: SlotWork) -> None:
        """Give back at no cost what was not begun of a claim, which an error has ended."""
        self._failed.append(work)
        self.works.pop(work.slot, None)

    def close(self) -> None:
        """Take nothing more. Claims that are asked for now count as got by nobody."""
        with self._lock:
            self._is_closed = True

    def give_back_failed(self, at_work: Container[int]) -> None:
        """Give back, at no cost, what nobody has got of claims whose slot no worker has."""
        while self._failed:
            self._give_back_rests(self._failed[:1])
            del self._failed[0]
        for slot, number in self._asked.copy().items():
            if slot not in at_work:
                self._run.give_back_unread(self.queue, [slot], number)
                del self._asked[slot]

    def _give_back_rests(self, works: Iterable[SlotWork]) -> None:
        wanted = [
            Rollback(work.slot, work.claim_id, [m.name for m in rest], ending=Ending.UNREAD)
            for work in works
            if (rest := work.rest())
        ]
        if wanted:
            self.queue.ask(returning.rollbacks, wanted)

    def roll_back(self, work: SlotWork, message: Delivered, failure: Failure) -> RollbackResult:
        wanted = self._rollback(work, message, failure)
        with self._lock:
            self._holds += failure.holds
        try:
            result = self.queue.ask(returning.rollbacks, [wanted])
        finally:
            with self._lock:
                if failure.holds:
                    self._held_s = time.monotonic()  # first: is_held reads without the lock
                self._holds -= failure.holds
        work.failed = None
        return result

    def is_held(self, work: SlotWork) -> bool:
        """Return whether a function holds the group, or has since this claim was asked for.

        Its answer may come later than that of a hold that Redis has made after it.
        """
        return self._holds > 0 or work.asked_s <= self._held_s

    def end(self, taken: Iterable[tuple[SlotWork, Delivered | None]]) -> None:
        """Roll back and commit claims that were taken away from their threads, all at once.

        taken: each with the message whose function has not returned. A rollback by that thread may
        still be on its way: another one of the same message does no harm.
        """
        works, wanted = [], []
        for work, message in taken:
            works.append(work)
            if work.failed:
                wanted.append(self._rollback(work, *work.failed))
            if message is not None:
                wanted.append(self._rollback(work, message, _STOPPED))
        if wanted:
            self.queue.ask(returning.rollbacks, wanted)
        self.commit(*works)

    def _rollback(self, work: SlotWork, message: Delivered, failure: Failure) -> Rollback:
        reason, ending, delay_ms, holds = failure.after(self._delay_ms)
        return Rollback(work.slot, work.claim_id, [message.name], delay_ms, [reason], ending, holds)

    def commit(self, *works: SlotWork) -> None:
        """Give back the messages that were not begun, at no cost, and commit the others."""
        for work in works:
            if not self.is_held(work):
                self._set_limit(work, len(work.rest()))
        self._give_back_rests(works)
        run = self._run
        result = run.commit(self.queue, {work.slot: work.seq for work in works})
        for work in works:
            if len(work) and work.slot not in result.held | result.again:
                _log.warning(
                    "rmq: listener %s lost a claim of slot %d before its commit: its lease "
                    "(visibility_timeout, %s) ended, or Redis has forgotten it. Unless the topic "
                    "was deleted, its messages are redelivered",
                    *(run.name, work.slot, duration_text(run.lease_ms)),
                )
            self.works.pop(work.slot, None)

    def _set_limit(self, work: SlotWork, rest: int) -> None:
        """Let the slot's next claim take about as many messages as can be worked on in its time."""
        if rest:
            limit = max(1, len(work) - rest)
        else:
            limit = min(2 * work.limit if work.is_quick else work.limit, LARGEST_CLAIM)
        self._limits[work.slot] = self._first_limit = limit

    def _limit_of(self, slot: int) -> int:
        # Claims of a topic with a rate limit are small: their messages wait for their calls.
        largest = min(LARGEST_CLAIM, self.queue.definition.messages_a_claim)
        return min(self._limits.get(slot, self._first_limit), largest)

    def renew(self) -> None:
        # All at once: one after another, they could take longer than a lease over a slow link, or
        # wait for the one node of a cluster that does not answer.
        self._run.renew(self.queue, {one.slot: one.seq for one in list(self.works.values())})

    def give_back(self) -> None:
        """Give back all claims that are left, and bar claims that arrive late."""
        self._give_back_rests([*self._failed, *self.works.copy().values()])
        for slot, number in self._asked.copy().items():
            self._run.give_back_unread(self.queue, [slot], number)
        # What is left had begun, or is done and could not be committed.
        last = next(self._numbers)
        self._run.give_back(self.queue, self.queue.slots, last, failed=True)
