"""A cell whose Redis falls back, within a batch, to a state from before the batch's claims.

Nobody but this process sends. One injection is::

    old messages | state kept | some more | a phase is held | fall-back | new messages, due first

- New messages must all reach the sink, and so must old ones: the state that is kept has them.
- Messages that were accepted in between may be missing in the sink: Redis has forgotten them.
- Messages that failed before the fall-back may be missing, too: where Redis has forgotten that they
  were rolled back, they are in their claim again, and the batch's commit removes them.
- Messages that the sink had already may come twice: Redis has forgotten that it delivered them.
- In a keyed topic, a payload of the state that was kept may be missing if a newer one of its key
  was sent after the fall-back.
- A query whose batches are read once must go on when Redis falls back among its claims.
"""

import re
import time
from contextlib import ExitStack
from typing import ClassVar

import rmq_spark

from ..rounds.ledger import FAILING, Sends
from ..rounds.moments import Call, Moment
from ..rounds.proxy import Trap
from ..waiting import wait_until
from .cell import DRAIN_S, TOPIC, Cell
from .past import FORGETFUL
from .verdict import Verdict

# A claim that is made anew, by an old name, would take these messages first.
DUE_BEFORE_ALL_MS = 3_600_000
# Of the messages before the fall-back, one of so many is accepted after the state was kept.
AFTER_KEPT = 10
ERROR = re.compile(r"rmq_spark\.errors\.\w+: .*")


class FallBackCell(Cell):
    """A cell that sends by itself, so that it knows what was accepted before and after."""

    queries: ClassVar = {"consumer": "consumer"}
    settings = FORGETFUL

    @staticmethod
    def keys_for(file: int) -> int:
        """The messages of a file before the fall-back, and half of it after it, have other keys.

        The rest has keys of the first half of that file: some payloads of the state that was kept
        are replaced, and others are not.
        """
        return file * 3 // 2

    def _open_redis(self, stack: ExitStack) -> None:
        super()._open_redis(stack)
        self.feed = Sends(self.queue, self.keys)
        self._past = self.lane.servers["past"] = self.fault.past(self.redis)
        stack.callback(self._past.close)
        # How many messages were accepted when the round began, and when the state was kept.
        self._begun = self._kept = 0
        self._stopped: list[str] = []

    def _run(self, verdict: Verdict, messages: int, times: int) -> None:
        super()._run(verdict, messages, times)
        verdict.stopped = self._stopped

    def _one(self, phase: str) -> bool:
        """Keeps a state, holds the phase, lets Redis fall back, and waits for the batches' end."""
        moment = self._keep(phase)
        try:
            moment.wait()
            time.sleep(self.dice.uniform(0, 0.3))
            since = len(self.lane.program("consumer").events)
            hit = self.fault.inject(self, moment)
        finally:
            moment.release()
        wait_until(self._empty, "all queues to be empty", DRAIN_S)
        if self.sink == "parquet" and phase == "read":
            self._stopped += self._errors(since)
        return hit

    def _keep(self, phase: str) -> Moment:
        """Keeps the state before the plan of a batch or before its claims; arms the moment.

        Tasks claim beside each other: the state may have claims of all tasks but one.
        """
        held = self._trap("any_due", "due")
        held.wait()
        self._begun = self.feed.given
        try:
            self.feed.give(self.file - self.file // AFTER_KEPT)
            if self.dice.random() < 0.5:
                planned, held = held, self._trap("claim")
                planned.release()
                held.wait()
            self._past.keep()
            self._kept = self.feed.given
            self.feed.give(self.file // AFTER_KEPT)
            return self.fault.places(self.sink)[phase].choose(self.dice, self.proxy, self.gates)
        finally:
            held.release()

    def _trap(self, *scripts: str) -> Call:
        known = {sha: name for sha, name in self.proxy.known.items() if name in scripts}
        return Call(self.proxy, Trap(known, "request"))

    def fall_back(self) -> bool:
        """Brings the kept state back; returns whether Redis is another process now."""
        before = self._run_id()
        failing = {each for each in self.feed.contents(self._begun) if re.search(FAILING, each)}
        self.forgettable |= self.feed.contents(self._kept) | failing
        self.feed.forget(self._kept)
        self.redis = self.lane.servers["redis"] = self._past.come_back()
        self.proxy.targets[0] = self.redis.port
        self.broker.close()
        self.broker = rmq_spark.connect(self.redis.url)
        self.queue = self.feed.queue = self.broker.queue(TOPIC)
        return self._run_id() != before

    def _run_id(self) -> str:
        return str(self.broker.server.client.info("server")["run_id"])

    def give_second_half(self) -> None:
        """Sends what comes after the fall-back."""
        self.feed.give(self.file, DUE_BEFORE_ALL_MS)

    def _errors(self, since: int) -> list[str]:
        """The failures of the query; it was started again after each."""
        events = self.lane.program("consumer").events[since:]
        texts = [event["error"] for event in events if event["event"] == "failed"]
        return [found[0] if (found := ERROR.search(text)) else text for text in texts]
