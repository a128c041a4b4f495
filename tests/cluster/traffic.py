"""A sender and a consumer that go on while a cluster is broken, and what came of it."""

import threading
import time
from collections import Counter

import rmq_spark
from rmq_spark.errors import LeaseLost, ServerError

from ..waiting import wait_until

TOPIC = "Traffic"
PATIENCE_S = 60.0


class Traffic:
    """A context manager: sends and consumes from its beginning to its end, then drains.

    accepted: contents whose send was answered. delivered: how often each was handed out. A content
    whose send failed is sent again until that is answered.
    """

    def __init__(self, url: str, slots: int = 16, **options: str) -> None:
        self._connect = lambda: rmq_spark.connect(url, patience_s=20, **options)
        self._slots = slots
        self.accepted: list[bytes] = []
        self.delivered: Counter[bytes] = Counter()
        self.errors: list[Exception] = []
        self._ended = threading.Event()
        self._drained = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=[run], daemon=True)
            for run in (self._send, self._consume)
        ]

    def __enter__(self) -> "Traffic":
        broker = self._connect()
        broker.create(TOPIC, "FixedTime", self._slots)
        broker.close()
        for thread in self._threads:
            thread.start()
        self.go_on()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if error is None:
            assert not any(thread.is_alive() for thread in self._threads), "it hangs"
            assert not self.errors, self.errors

    def go_on(self, messages: int = 300) -> None:
        """Waits until so many more have been accepted and delivered."""
        aim = len(self.accepted) + messages

        def reached() -> bool:
            assert not self.errors, self.errors
            return min(len(self.accepted), len(self.delivered)) >= aim

        wait_until(reached, f"{messages} more messages")

    @property
    def lost(self) -> set[bytes]:
        return set(self.accepted) - set(self.delivered)

    @property
    def repeated(self) -> int:
        return sum(count - 1 for count in self.delivered.values())

    def _guarded(self, run) -> None:
        try:
            run()
        except Exception as error:
            self.errors.append(error)

    def _send(self) -> None:
        broker = self._connect()
        number = 0
        while not self._ended.is_set():
            part = [f"m{at:07}".encode() for at in range(number, number + 20)]
            self._until_answered(broker, part)
            self.accepted += part
            number += len(part)
            time.sleep(0.01)
        broker.close()

    def _until_answered(self, broker, part) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                broker.queue(TOPIC).send(part, fixed_time=1)
            except ServerError:
                if time.monotonic() > end:
                    raise
            else:
                return

    def _consume(self) -> None:
        """Until everything that was accepted before the end has come, or nothing comes any more."""
        broker = self._connect()
        with broker.consumer(TOPIC, "one", visibility_timeout="3s") as consumer:
            quiet_since = time.monotonic()
            while not (self._ended.is_set() and not self._threads[0].is_alive() and not self.lost):
                contents = []
                try:
                    batch = consumer.poll(limit=200)
                    contents = [message.content for message in batch]
                    # Worked on before it is committed: that may be done though its reply is lost.
                    self.delivered.update(contents)
                    batch.commit()
                except (ServerError, LeaseLost):  # a replica may lack the claim
                    continue
                if contents or not self._ended.is_set():
                    quiet_since = time.monotonic()
                elif time.monotonic() > quiet_since + 10:
                    return
        broker.close()
