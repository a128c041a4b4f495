"""The program that sends the messages of schedules when their time has come."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rmq_spark.client.administration import Administration
from rmq_spark.client.queue import Queue
from rmq_spark.client.schedules import (
    ALL,
    MISSED_AFTER_MS,
    NONE,
    OF_A_SCHEDULE,
    SEND,
    WAIT,
    Schedule,
    is_ahead,
    is_undone,
    last_after,
    parse_note,
    slot_of,
)
from rmq_spark.errors import RmqError, ServerError, UnknownTopic, WrongKeyType
from rmq_spark.process import Runner, UnfailingLog
from rmq_spark.protocol import sending
from rmq_spark.protocol.calls import CALLS_A_PIPELINE, fields_of
from rmq_spark.protocol.packing import chunks
from rmq_spark.topics.keys import schedules_key

_log = UnfailingLog(__name__)

# How often to look for schedules that are new or have changed.
LOOK_S = 1.0
# Of what was missed, so many occurrences of a schedule are sent before the others have their turn.
_MISSED_A_ROUND = 100


@dataclass
class _Running:
    """A schedule as this program knows it."""

    text: bytes  # its definition, in Redis
    schedule: Schedule
    queue: Queue
    slot: int
    note: str  # "sinceMs occurrenceMs" of its last occurrence; empty before the first
    confirmed: bool = False  # whether the definition was still there after the note was read
    waits_ms: int = 0  # the occurrence that waits until the last message is done

    @property
    def after_ms(self) -> int:
        return last_after(self.schedule, self.note)

    @property
    def next_ms(self) -> int | None:
        return None if self.schedule.paused else self.schedule.following(self.after_ms)


class Scheduler(Runner):
    """Sends the messages of all schedules under a broker's key prefix. From ``broker.scheduler``.

    ``run`` works in this thread. As a context manager, the scheduler works in a thread of its own
    during the block. Any number of programs may run the schedules: each occurrence is sent once.
    Times are those of Redis' clock.
    """

    _name = "the scheduler"
    _passing = (ServerError,)
    _log = _log
    _thread_name = "rmq-scheduler"
    _misused = RmqError

    def __init__(self, broker: Administration) -> None:
        super().__init__()
        self._broker = broker
        self._running: dict[str, _Running] = {}
        self._next_ms: dict[str, int] = {}  # 0: to be looked at
        self._now_ms = 0
        self._complaints: dict[str, str] = {}
        self._read_again_s = -math.inf
        self._sent = 0

    @property
    def sent(self) -> int:
        """The number of messages that this program has sent."""
        return self._sent

    def _progress(self) -> int:
        return self._sent

    def _work(self) -> None:
        while not self._is_over:
            wait_s = self._round()
            self._begun.set()
            self._rest(wait_s)

    def _round(self) -> float:
        """Send what is due. Return how long there is nothing to do, in seconds."""
        begun_s = time.monotonic()
        if begun_s >= self._read_again_s or self._unconfirmed:
            self._read()
            self._read_again_s = begun_s + LOOK_S
        now_ms = self._broker.server.now_ms()
        if now_ms + 1000 * LOOK_S < self._now_ms:  # Redis' clock was set back
            self._next_ms = {name: 0 for name, one in self._running.items() if one.confirmed}
        self._now_ms = now_ms
        due = sorted((at, name) for name, at in self._next_ms.items() if at <= now_ms)
        for at_ms, name in due:
            # Not too long: a schedule may have been paused meanwhile.
            if self._is_over or time.monotonic() > begun_s + LOOK_S:
                return 0.0
            sends = self._sends_due(self._running[name], now_ms)
            self._expect(name)
            if not sends or self._next_ms.get(name) == at_ms:
                self._next_ms[name] = now_ms + int(1000 * LOOK_S)
        if self._unconfirmed:
            return 0.0
        soonest_ms = min(self._next_ms.values(), default=now_ms + 1000 * LOOK_S)
        return min(max(soonest_ms - now_ms, 0) / 1000, LOOK_S)

    @property
    def _unconfirmed(self) -> bool:
        return any(not one.confirmed for one in self._running.values())

    def _expect(self, name: str) -> None:
        one, next_ms = self._running[name], None
        with self._complaining(name):
            next_ms = one.next_ms if one.confirmed else None
        if next_ms is None:
            self._next_ms.pop(name, None)
        else:
            self._next_ms[name] = next_ms

    def _read(self) -> None:
        """Read the schedules, and the notes of those that are new or have changed.

        A note counts once the definition was found again after it. Otherwise, the schedule might
        have been removed with its note in between, and would seem never to have occurred.
        """
        server, prefix = self._broker.server, self._broker.key_prefix
        found = {
            name.decode(errors="replace"): text
            for name, text in fields_of(server.command("HGETALL", schedules_key(prefix)))
        }
        for name in self._running.keys() - found.keys():
            self._forget(name)
        fresh = []
        for name, text in found.items():
            known = self._running.get(name)
            if known is None or known.text != text:
                self._forget(name)
                if running := self._opened(name, text):
                    fresh.append(running)
            elif not known.confirmed:
                known.confirmed = True
                self._next_ms[name] = 0
        for part in chunks(fresh, CALLS_A_PIPELINE):
            try:
                self._read_notes(part)
            except WrongKeyType:
                for one in part:
                    with self._complaining(one.schedule.name):
                        self._read_notes([one])

    def _read_notes(self, fresh: Sequence[_Running]) -> None:
        notes = self._broker.server.commands(
            [("HGET", one.queue.keys.schedules(one.slot), one.schedule.name) for one in fresh]
        )
        for one, note in zip(fresh, notes, strict=True):
            with self._complaining(one.schedule.name):
                parse_note(one.schedule, note or b"")
                one.note = (note or b"").decode()
                self._running[one.schedule.name] = one

    def _forget(self, name: str) -> None:
        self._running.pop(name, None)
        self._next_ms.pop(name, None)

    def _opened(self, name: str, text: bytes) -> _Running | None:
        with self._complaining(name):
            schedule = Schedule.from_json(name, text)
            schedule.local_time(0), schedule.next_after(0)  # if cronsim or the zone is missing
            queue = self._broker.queue(schedule.topic)
            return _Running(text, schedule, queue, slot_of(schedule, queue.definition), "")
        return None

    def _sends_due(self, one: _Running, now_ms: int) -> bool:
        """Send what is due of a schedule. Return False if it cannot be sent."""
        with self._complaining(one.schedule.name):
            self._send_due(one, now_ms)
            self._complaints.pop(one.schedule.name, None)
            return True
        return False

    @contextmanager
    def _complaining(self, name: str) -> Iterator[None]:
        """Log an error of a schedule, once, and go on with the others."""
        try:
            yield
        except RmqError as error:
            if isinstance(error, ServerError) and not isinstance(error, OF_A_SCHEDULE):
                raise
            if self._complaints.get(name) != str(error):
                _log.warning("rmq: the schedule %s sends nothing: %s", name, error)
            self._complaints[name] = str(error)

    def _send_due(self, one: _Running, now_ms: int) -> None:
        schedule = one.schedule
        if is_ahead(one.after_ms, now_ms):
            if self._note(one, now_ms, is_sent=False):
                _log.warning(
                    "rmq: Redis' clock was set back: the schedule %s goes on",
                    schedule.name,
                )
            return
        for _ in range(_MISSED_A_ROUND):
            if self._is_over or schedule.paused:
                return
            if schedule.catch_up == ALL:
                at_ms = one.next_ms
            else:
                at_ms = schedule.latest(one.after_ms, now_ms)
            if at_ms is None or at_ms > now_ms:
                return
            is_sent = not (schedule.catch_up == NONE and now_ms - at_ms > MISSED_AFTER_MS)
            if is_sent and schedule.overlap != SEND and is_undone(one.queue, schedule):
                if schedule.overlap == WAIT:
                    if one.waits_ms != at_ms:
                        _say(schedule, at_ms, "waits until the last message is done")
                    one.waits_ms = at_ms
                    return
                is_sent = False
            if not self._note(one, at_ms, is_sent):
                return

    def _note(self, one: _Running, at_ms: int, is_sent: bool) -> bool:
        """Note an occurrence, and send its message. Return whether it was this program that did."""
        schedule, queue = one.schedule, one.queue
        if not queue.refresh():
            raise UnknownTopic(f"The topic {schedule.topic} was deleted.")
        if slot_of(schedule, queue.definition) != one.slot:  # created again, in another way
            one.text = b""
            return False
        message = None
        if is_sent:
            checked = schedule.outgoing(queue.definition, at_ms, queue.now_ms)
            [(slot, (score, name))] = checked.pairs.items()
            message = score, name, checked.bodies[slot][1]
        note = f"{schedule.since_ms} {at_ms}"
        notes = one.note, note
        done, found, repeated = queue.ask(sending.occur, one.slot, schedule.name, notes, message)
        if not done and found != note:  # changed, or removed: read it again
            one.text = b""
            return False
        one.note = found
        if done:
            self._sent += message is not None and not repeated
            how = "repeated" if repeated else "sent" if message else "skipped"
            _say(schedule, at_ms, how)
        return True


def _say(schedule: Schedule, at_ms: int, what: str) -> None:
    _log.info("rmq: %s at %s: %s", schedule.name, schedule.local_time(at_ms).isoformat(), what)
