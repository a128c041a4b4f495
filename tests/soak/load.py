"""The messages of a soak: senders that go on while Redis dies, and know what was accepted."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from rmq_spark.client import Broker, Message
from rmq_spark.errors import ServerError

from ..rounds.ledger import content, key, slot_basis

PART = 20
# Due so long after they are sent: a call that is repeated within it merges with itself.
DUE_AFTER_MS = 4000
CANCELLED_AFTER_MS = 3_600_000
# Of so many parts, one is sent to be cancelled.
CANCEL_EVERY = 10
KEYS = 400
DOOMED = "13"  # the end of the contents that always fail, where a service is told so


class Sender(threading.Thread):
    """Sends numbered messages to one topic, some to be cancelled, until it is ended.

    sent: how many numbers were accepted. unsure: contents of calls that took so long, or had to be
    repeated, that a consumer may have had them in between: they may come twice. cancelled: contents
    that were cancelled before they were due.
    """

    def __init__(self, broker: Broker, topic: str, per_second: float, seed: str) -> None:
        super().__init__(daemon=True)
        self.queue = broker.queue(topic)
        self.topic = topic
        self.sent = 0
        self.unsure: set[str] = set()
        self.cancelled: set[str] = set()
        self.error: BaseException | None = None
        self._dice = random.Random(seed)
        self._pause_s = PART / per_second
        self._over = threading.Event()

    def end(self) -> None:
        """Send no more. Raises what ended the thread before."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        parts = 0
        try:
            while not self._over.wait(self._dice.uniform(0, 2 * self._pause_s)):
                numbers = range(self.sent, self.sent + PART)
                texts = {content(number) for number in numbers}
                if self._until_answered(lambda n=numbers: self._send(n)) > self._merges_for_s():
                    self.unsure |= texts
                self.sent += PART
                parts += 1
                if parts % CANCEL_EVERY == 0 and not self._keyed:
                    self._send_and_cancel(parts)
        except BaseException as error:
            self.error = error

    @property
    def _keyed(self) -> bool:
        return self.queue.definition.keyed

    def _merges_for_s(self) -> float:
        """How long a message surely waits, so that it merges with its repetition."""
        return 0.01 if self.queue.definition.type.name == "Priority" else DUE_AFTER_MS / 1000 / 2

    def _until_answered(self, call: Callable[[], Any]) -> float:
        """Calls until it is answered; returns the seconds it took."""
        since = time.monotonic()
        while True:
            try:
                call()
            except ServerError:
                if self._over.is_set():
                    raise
            else:
                return time.monotonic() - since

    def _send(self, numbers: range) -> None:
        self.queue.send([self._message(number) for number in numbers])

    def _message(self, number: int) -> Message:
        if self._keyed:
            name, basis = key(number, KEYS), slot_basis(number % KEYS)
        else:
            name, basis = None, slot_basis(number)
        return Message(content(number), basis, key=name, **self._value())

    def _value(self, after_ms: int = DUE_AFTER_MS) -> dict[str, int]:
        return {
            "FixedTime": {"fixed_time": self.queue.now_ms() + after_ms},
            "RangeMerge": {"time_range": after_ms},
            "Priority": {"priority": self._dice.randint(17, 99)},
        }[self.queue.definition.type.name]

    def _send_and_cancel(self, part: int) -> None:
        if self.queue.definition.type.name == "Priority":
            return
        texts = [f"cancelled-{part}-{at}" for at in range(5)]

        def send() -> None:
            value = self._value(CANCELLED_AFTER_MS)
            self.queue.send(texts, slot_basis="cancelled", **value)

        self._until_answered(send)
        for group in self.queue.definition.groups:
            of_group = self.queue.of_group(group)
            self._until_answered(lambda q=of_group: q.cancel(texts, slot_basis="cancelled"))
        self.cancelled.update(texts)
