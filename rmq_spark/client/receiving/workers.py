"""The workers of a listener: threads that claim messages, have them worked on, and commit."""

import math
import queue as queues
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rmq_spark.client.receiving.callers import Caller
from rmq_spark.client.receiving.child_process import too_long
from rmq_spark.client.receiving.listener_settings import ListenerSettings
from rmq_spark.client.receiving.slot_claims import SlotClaims, SlotWork
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.errors import PASSING, AlreadyCommitted, LeaseLost, RmqError, ServerUnavailable
from rmq_spark.process import UnfailingLog
from rmq_spark.protocol.claims import Delivered, SlotDue
from rmq_spark.topics.reasons import reason_of
from rmq_spark.topics.verdicts import Ending, Failure

_log = UnfailingLog(__name__)
_T = TypeVar("_T")

# How often leases are renewed and hanging functions looked for, at the least.
_LOOK_EVERY_S = 1.0
# How long a slot rests after an error.
_AFTER_ERROR_S = 1.0
# How long a slot rests if nothing of what is due could be taken: others work on equal messages.
_NOTHING_TAKEN_S = 0.1


class Workers:
    """Threads that work on slots with due messages, one slot at a time each.

    on_end: called in a worker with a slot that it no longer works on, and for how long, in s, the
    slot should rest. on_error: called in a worker, which goes on. stopping: once it is set, no
    message is begun. refused_s: when Redis last refused a worker's write, by the monotonic clock;
    it may answer reads all the same. -inf if it has taken one since.
    """

    refused_s = -math.inf

    def __init__(
        self,
        slot_claims: SlotClaims,
        settings: ListenerSettings,
        open_caller: Callable[[], Caller],
        on_end: Callable[[int, float], None],
        on_error: Callable[[RmqError], None],
        stopping: threading.Event,
    ) -> None:
        self.succeeded = self.failed = self.snoozed = self.left_alone = 0
        self._timings = Timings()  # of threads that have ended
        self._timings_given_up = Timings()
        self._counting = threading.Lock()
        self._slot_claims = slot_claims
        self._open_caller = open_caller
        self._amount = amount = settings.workers
        self._lease_ms = settings.lease_ms
        self._hanging_after_s = settings.hanging_after_s
        self._on_end, self._on_error = on_end, on_error
        self._stopping, self._ended = stopping, threading.Event()
        self._free = threading.Semaphore(amount)
        self._budget = settings.budget or threading.Semaphore(amount)
        self._slots: queues.SimpleQueue[SlotDue | None] = queues.SimpleQueue()
        self._callers: dict[Caller, Timings] = {}
        try:
            for _ in range(amount):
                self._start(self._run)
            self._start(self._keep)
        except RuntimeError:  # no thread can be started: those that were must not stay
            self.finish(lambda: 0.0)
            raise

    # -- called by the thread that hands out slots

    def reserve(self, timeout_s: float = 0.0) -> bool:
        return self._free.acquire(timeout=timeout_s)

    def cancel(self) -> None:
        self._free.release()

    def hand(self, slot: SlotDue) -> None:
        self._slots.put(slot)

    @property
    def at_work(self) -> int:
        return len(self._slot_claims.works)

    def finish(
        self, time_left_s: Callable[[], float], is_away: Callable[[], bool] = lambda: False
    ) -> int:
        """End the threads after their current messages. Return how many calls were given up.

        time_left_s: returns how long to go on waiting for running calls, which a second stop may
        shorten. is_away: returns whether Redis was just found not to answer. What was not begun is
        given back, also of claims that are between two messages, or that Redis has not answered
        yet.
        """
        self._stopping.set()
        ended = 0
        while ended < self._amount:
            left_s = max(0.0, time_left_s())
            if self.reserve(min(left_s, _LOOK_EVERY_S)):
                ended += 1
            elif not left_s:
                break
        self._ended.set()
        given_up = self._take_away(is_away) if ended < self._amount else 0
        for _ in range(self._amount):
            self._slots.put(None)
        return given_up

    def _take_away(self, is_away: Callable[[], bool]) -> int:
        """End the claims of threads that have not ended. Return how many calls were given up.

        If Redis does not answer, the others are redelivered when their leases end: a stop must not
        wait for each of them.
        """
        self._slot_claims.close()
        works = list(self._slot_claims.works.values())
        taken = [(work, work.take_away()) for work in works]
        for caller in list(self._callers):
            caller.give_up()
        try:
            if not is_away():
                self._slot_claims.end(taken)
        except RmqError as error:
            self._on_error(error)
        return sum(message is not None for _, message in taken)

    # -- the threads of the workers

    def _start(self, run: Callable[..., None], *args: object) -> None:
        threading.Thread(target=run, args=args, name="rmq-worker", daemon=True).start()

    def _run(self, work: SlotWork | None = None) -> None:
        """Work on slots, one after another; first on the rest of a claim that was given up."""
        try:
            caller = self._open_caller()
        except BaseException as error:
            self._report(error)
            while (slot := self._slots.get()) is not None:
                self._end_slot(slot.slot, _AFTER_ERROR_S)
            return
        me = self._callers[caller] = Timings()  # stands for this thread, as the owner of work
        try:
            if work is None or self._do(work, me, caller):
                while (slot := self._slots.get()) is not None and self._take(slot, me, caller):
                    pass
        finally:
            with self._counting:
                self._timings = Timings.sum_of([self._timings, self._callers.pop(caller)])
            caller.close()

    def _take(self, slot: SlotDue, me: Timings, caller: Caller) -> bool:
        while not self._budget.acquire(timeout=_LOOK_EVERY_S):
            if self._stopping.is_set():
                self._end_slot(slot.slot, 0.0)
                return True
        try:
            work = self._slot_claims.take(slot)
        except BaseException as error:
            if isinstance(error, LeaseLost):  # before its answer came: another reader gave it back
                _log.warning(
                    "rmq: lost a claim of slot %d: its messages are redelivered", slot.slot
                )
            else:
                self._report(error)
            self._end_work(slot.slot, _AFTER_ERROR_S)
            return True
        self.refused_s = -math.inf
        if work is None:
            self._end_work(slot.slot, 0.0)
            return True
        return self._do(work, me, caller)

    def _do(self, work: SlotWork, me: Timings, caller: Caller) -> bool:
        """Call the function for messages, and commit them. Returns False for a thread given up."""
        work.own(me)
        try:
            self._call_each(work, me, caller)
            if not work.is_owned_by(me):
                return False
            self._until_answered(lambda: self._slot_claims.commit(work))
        except BaseException as error:
            self._report(error)
            self._give_back(work)
            return True
        self._end_work(work.slot, 0.0 if work.took_any else _NOTHING_TAKEN_S)
        return True

    def _call_each(self, work: SlotWork, me: Timings, caller: Caller) -> None:
        while self._may_go_on(work):
            try:
                caller.prepare()
            except BaseException as error:  # what is done is committed all the same
                self._report(error)
                return
            # A preparation may take long.
            message = work.begin(me) if self._may_go_on(work) else None
            if message is None:
                return
            began_s = work.began_s or 0.0
            try:
                failure = caller.call(message)
            except BaseException as error:  # such as the end of an event loop: it ends the listener
                self._report(error)
                failure = Failure(reason_of(error))
            if not work.end(me, failure):
                return
            lasted_s, since_claim_s = time.monotonic() - began_s, began_s - work.claimed_s
            me.add(lasted_s, message.due_time_ms, message.claimed_at_ms, since_claim_s)
            if failure is None:
                self._count(succeeded=1)
            else:
                self._roll_back(work, message, failure)

    def _may_go_on(self, work: SlotWork) -> bool:
        """Return whether to begin a message, if there is one: not if others wait for its slot."""
        is_wanted = work.slot in self._slot_claims.epochs and not self._stopping.is_set()
        is_held = self._slot_claims.is_held(work)
        return is_wanted and not (work.is_through or work.is_over or is_held)

    def _roll_back(self, work: SlotWork, message: Delivered, failure: Failure) -> None:
        result = self._until_answered(lambda: self._slot_claims.roll_back(work, message, failure))
        # After the end of a grace, another thread has perhaps rolled it back as well.
        left_alone = 0 if self._ended.is_set() else result.left_alone
        if failure.ending is Ending.UNCHARGED:
            self._count(snoozed=1, left_alone=left_alone)
            return
        self._count(failed=1, left_alone=left_alone)
        if failure.ending is Ending.BURY:
            became = "was buried"
        elif result.rolled_back and not message.retries_left:
            became = "died"
        else:
            became = "was rolled back"
        _log.warning(
            "rmq: a message of topic %s, slot %d %s: %s",
            *(message.topic, message.slot, became, failure.reason),
        )

    def _until_answered(self, ask: Callable[[], _T]) -> _T:
        """Ask Redis until it answers: what is done must not be redelivered if Redis was away."""
        while True:
            try:
                answer = ask()
                self.refused_s = -math.inf
                return answer
            except PASSING as error:
                if self._ended.wait(_AFTER_ERROR_S):
                    raise
                self._report(error)

    def _report(self, error: BaseException) -> None:
        """Report an error, also one that nobody expects: a slot must not stay with this worker."""
        if isinstance(error, AlreadyCommitted) and self._ended.is_set():
            return  # a claim that a stop has refused
        if isinstance(error, ServerUnavailable):
            self.refused_s = time.monotonic()
        if not isinstance(error, RmqError):
            _log.error("rmq: a thread of a listener has failed", exc_info=error)
            error = RmqError(f"A thread of the listener has failed: {reason_of(error)}")
        self._on_error(error)

    def _give_back(self, work: SlotWork) -> None:
        self._slot_claims.give_back_soon(work)
        self._end_work(work.slot, _AFTER_ERROR_S)

    def _end_work(self, slot: int, rest_s: float) -> None:
        self._budget.release()
        self._end_slot(slot, rest_s)

    def _end_slot(self, slot: int, rest_s: float) -> None:
        self._on_end(slot, rest_s)
        self._free.release()

    def _count(
        self, succeeded: int = 0, failed: int = 0, snoozed: int = 0, left_alone: int = 0
    ) -> None:
        with self._counting:
            self.snoozed += snoozed
            self.succeeded += succeeded
            self.failed += failed
            self.left_alone += left_alone

    def timings(self) -> Timings:
        with self._counting:
            return Timings.sum_of([self._timings, self._timings_given_up, *self._callers.values()])

    # -- the thread that keeps what the workers have

    def _keep(self) -> None:
        renew_every_s = self._lease_ms / 3000
        renewed_s = time.monotonic()
        hanging_s = self._hanging_after_s or 2 * _LOOK_EVERY_S
        pause_s = min(_LOOK_EVERY_S, renew_every_s, hanging_s / 2)
        while not self._ended.wait(max(0.01, pause_s)):
            try:
                self._give_up_hanging()
                if time.monotonic() - renewed_s >= renew_every_s and self._slot_claims.works:
                    renewed_s = time.monotonic()
                    self._slot_claims.renew()
            except Exception as error:  # without this thread, leases would end
                self._report(error)

    def _give_up_hanging(self) -> None:
        if self._hanging_after_s is None:
            return
        failure = Failure(too_long(self._hanging_after_s))
        for work in list(self._slot_claims.works.values()):
            began_s = work.began_s
            if began_s is None or time.monotonic() - began_s <= self._hanging_after_s:
                continue
            callers = [one for one, me in list(self._callers.items()) if work.is_owned_by(me)]
            message = work.give_up(self._hanging_after_s, failure)
            if message is not None:
                for caller in callers:  # the one that is at the message
                    caller.give_up()
                lasted_s, since_claim_s = self._hanging_after_s, began_s - work.claimed_s
                self._timings_given_up.add(
                    lasted_s, message.due_time_ms, message.claimed_at_ms, since_claim_s
                )
                self._start(self._go_on, work, message, failure)

    def _go_on(self, work: SlotWork, message: Delivered, failure: Failure) -> None:
        try:
            self._roll_back(work, message, failure)
        except BaseException as error:  # a commit would lose the message
            self._report(error)
            self._give_back(work)
            self._run()
        else:
            self._run(work)
