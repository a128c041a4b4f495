"""Schedules: messages that are sent again and again, by a cron expression or at fixed intervals.

Redis keeps their definitions in one hash. What was sent last stands in a hash of the message's
slot, so that one script can note an occurrence and send its message.
"""

import base64
import json
import logging
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, cast

from rmq_spark.client.administration import Administration, Failed, parse_fields, replace_field
from rmq_spark.client.messages import (
    Message,
    Outgoing,
    fault_of,
    headers_of,
    moment_ms_of,
    outgoing,
)
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption, ScriptFailed, WrongKeyType, quoted
from rmq_spark.protocol import reading
from rmq_spark.protocol.calls import fields_of
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import TopicDefinition, check_topic_name
from rmq_spark.topics.keys import ACCEPTED_NAME, HIGHEST_SCORE, Keys, is_name, schedules_key
from rmq_spark.topics.parsing import (
    ACCEPTED_DURATION,
    Duration,
    duration_text,
    ms_since_1970,
    time_at,
    wait_ms,
)
from rmq_spark.topics.types import LONGEST_WAIT_MS, TopicType

_log = logging.getLogger(__name__)

# What to do about occurrences that were missed while no program ran the schedules.
NONE, ONE, ALL = CATCH_UPS = ("none", "one", "all")
# What to do if the last message of a schedule still waits or is in progress.
SEND, SKIP, WAIT = OVERLAPS = ("send", "skip", "wait")
# Every program that runs the schedules reads all of them every second.
LARGEST_MESSAGE_BYTES = 65_536
SHORTEST_INTERVAL_MS = 1000
# With catch-up "none", an occurrence that is later than this is not sent.
MISSED_AFTER_MS = 60_000
# Headers of each message: the schedule, and the time of the occurrence.
NAME_HEADER, TIME_HEADER = "rmq-schedule", "rmq-scheduled-time"
VERSION = 1
# Errors of a single schedule or key, after which the others go on.
OF_A_SCHEDULE = (InvalidOption, ScriptFailed, WrongKeyType)
# Twice as much as clocks change at most, except where a country has skipped a whole day.
_NEAR = timedelta(hours=6)
_DURATIONS = ("time_range", "delay", "time_to_live")
_NUMBERS = (*_DURATIONS, "priority")
_TEXTS = ("content", "slot_basis", "key")


@dataclass(frozen=True)
class Schedule:
    """A message, and when to send it. From ``broker.schedules``.

    cron: an expression of five fields, or of six that begin with seconds; or every_ms: an interval.
    timezone: of the expression. first_ms, last_ms: bounds of the occurrences, in ms since 1970; the
    first one is also where intervals begin, otherwise begin_ms. catch_up, overlap, paused: as for
    Broker.schedule. since_ms: occurrences until then do not count; Redis' time when the times of
    the schedule were set or it was resumed.
    """

    name: str
    topic: str
    message: Message
    cron: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    first_ms: int | None = None
    last_ms: int | None = None
    catch_up: str = ONE
    overlap: str = SEND
    paused: bool = False
    since_ms: int = 0
    begin_ms: int | None = None

    @property
    def times(self) -> tuple[Any, ...]:
        """What decides when the schedule occurs, and where its message goes."""
        place = self.topic, self.message.slot_basis, self.message.key, self.message.content
        return self.cron, self.every_ms, self.timezone, self.first_ms, place

    @property
    def rule(self) -> str:
        """The times as a person writes them."""
        if self.every_ms is not None:
            return f"every {duration_text(self.every_ms)}"
        return f"{self.cron} {self.timezone}"

    @cached_property
    def _zone(self) -> zoneinfo.ZoneInfo:
        return _zone_of(self.timezone)

    def next_after(self, ms: int) -> int | None:
        """Return the first occurrence after a time; None after the last one. In ms since 1970."""
        return self.following(max(ms, self.since_ms))

    def following(self, after_ms: int) -> int | None:
        """Do the same for a time that may lie before since_ms, if Redis' clock was set back."""
        found: int | None
        if self.every_ms is not None:
            begins = (self.first_ms, self.begin_ms, self.since_ms)
            begin_ms = next(ms for ms in begins if ms is not None)
            found = begin_ms + ((after_ms - begin_ms) // self.every_ms + 1) * self.every_ms
            found = found if self.first_ms is None else max(found, self.first_ms)
        else:
            found = self._cron_next(max(after_ms, (self.first_ms or 0) - 1))
        highest = HIGHEST_SCORE if self.last_ms is None else self.last_ms
        return found if found is not None and found <= highest else None

    def latest(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last occurrence after a time and up to another; None if there is none."""
        first = self.following(after_ms)
        if first is None or first > until_ms:
            return None
        until_ms = min(until_ms, self.last_ms or until_ms)
        if self.every_ms is not None:
            return until_ms - (until_ms - first) % self.every_ms
        found = self._cron_next(until_ms + 1, backward=True)
        return first if found is None else max(first, found)

    def _cron_next(self, ms: int, *, backward: bool = False) -> int | None:
        """Return the nearest time after (or before) another that the expression names."""
        try:
            local = self.local_time(ms).replace(tzinfo=None)
            wall = next(_walls(str(self.cron), local, backward=backward), None)
            if wall is None:
                return None
            found = ms_since_1970(wall.replace(tzinfo=self._zone))
            change = max(self._change_near(ms), self._change_near(found))
            return self._near_a_change(change, local, ms, backward) if change else found
        except OverflowError:  # beyond the years that Python knows
            return None
        except InvalidOption as error:
            raise InvalidOption(f"The schedule {self.name}: {error}") from None

    def _near_a_change(
        self, change: timedelta, local: datetime, ms: int, backward: bool
    ) -> int | None:
        """Do the same where clocks change: what they show is not in the order of time there."""
        onward = -1 if backward else 1
        nearest = last_wall = None
        for wall in _walls(str(self.cron), local - onward * change, backward=backward):
            if last_wall is not None and onward * (wall - last_wall) > timedelta():
                break
            for at_ms in self._times_of(wall):
                if onward * (at_ms - ms) > 0:
                    if nearest is None or onward * (nearest - at_ms) > 0:
                        nearest = at_ms
                    last_wall = last_wall or wall + onward * change
        return nearest

    def _times_of(self, wall: datetime) -> Iterator[int]:
        """Yield when clocks show a time: twice or never, in nights in which they change.

        As in Debian's cron, an expression that names hours and minutes occurs once: the first time,
        or if there is none, when the clocks go on.
        """
        first = wall.replace(tzinfo=self._zone, fold=0)
        if _is_there(first):
            yield ms_since_1970(first)
            second = first.replace(fold=1)
            if self._is_each_time and second.utcoffset() != first.utcoffset():
                yield ms_since_1970(second)
        elif not self._is_each_time:
            while not _is_there(first):
                first += timedelta(minutes=1)
            yield ms_since_1970(first)

    @property
    def _is_each_time(self) -> bool:
        fields_of_time = str(self.cron).split()
        return len(fields_of_time) == 6 or any(one.startswith("*") for one in fields_of_time[:2])

    def _change_near(self, ms: int) -> timedelta:
        """Return by how much the clocks change within some hours of a time."""
        around = (time_at(ms) - _NEAR, time_at(ms) + _NEAR)
        before, after = (cast(timedelta, one.astimezone(self._zone).utcoffset()) for one in around)
        return abs(after - before)

    def outgoing(
        self, topic: TopicDefinition, occurrence_ms: int, now_ms: Callable[[], int]
    ) -> Outgoing:
        """Check the message of an occurrence. Raises InvalidMessage."""
        message = self.message
        of_schedule = [
            (NAME_HEADER, self.name),
            (TIME_HEADER, self.local_time(occurrence_ms).isoformat()),
        ]
        own = headers_of(message.headers, 0)
        if topic.type is TopicType.FIXED_TIME:
            due_ms = occurrence_ms + int(wait_ms(message.delay or 0) or 0)
            message = replace(message, fixed_time=due_ms, delay=None)
        message = replace(message, headers=[*own, *of_schedule])
        return outgoing([message], Message(), topic, now_ms=now_ms)

    def local_time(self, ms: int) -> datetime:
        """Return a time in the schedule's time zone."""
        return time_at(ms).astimezone(self._zone)

    def to_json(self) -> str:
        """Return the text that Redis keeps."""
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "message"}
        del kept["name"]
        message = {name: getattr(self.message, name) for name in _NUMBERS}
        message |= {name: _packed(getattr(self.message, name)) for name in _TEXTS}
        message["headers"] = [[n, _packed(v)] for n, v in headers_of(self.message.headers, 0)]
        kept["message"] = {
            name: value for name, value in message.items() if value not in (None, [])
        }
        given = {name: value for name, value in kept.items() if value is not None}
        return json.dumps({"version": VERSION, **given}, sort_keys=True)

    @staticmethod
    def from_json(name: str, text: bytes) -> "Schedule":
        """Parse a text of to_json. Raises ScriptFailed for any other text."""
        try:
            kept = {**json.loads(text)}
            if kept["version"] != VERSION:
                raise ValueError(f"its version is {kept['version']!r}, not {VERSION}")
            of_message = {**kept["message"]}
            message = {one: of_message[one] for one in _NUMBERS if one in of_message}
            message |= {one: _unpacked(of_message[one]) for one in _TEXTS if one in of_message}
            if "headers" in of_message:
                message["headers"] = tuple((n, _unpacked(v)) for n, v in of_message["headers"])
            known = {one.name: kept[one.name] for one in fields(Schedule) if one.name in kept}
            found = Schedule(**{**known, "name": name, "message": Message(**message)})
            found._check()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ScriptFailed(
                f"The schedule {name} in rmq_schedules cannot be read ({error}): {text[:200]!r}. "
                f"Use the version of rmq-spark that wrote it, or remove it: rmq unschedule {name}."
            ) from error
        return found

    def _check(self) -> None:
        """Refuse what would stop those who go through all schedules. Raises ValueError."""
        for one in fields(self):
            value = getattr(self, one.name)
            if not isinstance(value, cast(Any, one.type)):
                raise ValueError(f"{one.name} is {quoted(value)}")
            if one.name.endswith("_ms"):
                _moment(one.name, value)
        if self.every_ms is not None:
            _interval_ms(self.every_ms)
        check_topic_name(self.topic)
        _check_choice("catch_up", self.catch_up, CATCH_UPS)
        _check_choice("overlap", self.overlap, OVERLAPS)


def _walls(cron: str, local: datetime, *, backward: bool = False) -> Iterator[datetime]:
    """Yield the times after (or before) another that an expression names, as clocks show them."""
    times = _parsed_cron(cron, local, backward)
    with suppress(OverflowError):  # beyond the years that Python knows
        yield from times


def _is_there(time: datetime) -> bool:
    """Return whether the clocks show a time; not in the hour that they skip."""
    return time.astimezone(UTC).astimezone(time.tzinfo).replace(fold=0) == time.replace(fold=0)


def _packed(value: bytes | None) -> Any:
    """Return bytes as JSON has them: as text if they are UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value or b"").decode()}


def _unpacked(value: Any) -> bytes | None:
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()


def parse_schedule(
    topic: TopicDefinition,
    name: str,
    message: Message | bytes | str,
    *,
    cron: str | None,
    every: Duration | None,
    timezone: str,
    first: int | datetime | None,
    last: int | datetime | None,
    catch_up: str,
    overlap: str,
    now_ms: Callable[[], int],
) -> Schedule:
    """Check the arguments of Broker.schedule. Raises InvalidOption, InvalidMessage."""
    if not is_name(name):
        raise InvalidOption.of("name", name, ACCEPTED_NAME, "is not a name of a schedule")
    if (cron is None) == (every is None):
        raise InvalidOption(
            f"cron={quoted(cron)} and every={quoted(every)}. Accepted: one of the two."
        )
    _check_choice("catch_up", catch_up, CATCH_UPS)
    _check_choice("overlap", overlap, OVERLAPS)
    _zone_of(timezone)
    every_ms = None if every is None else _interval_ms(every)
    if cron is not None:
        _parsed_cron(cron, time_at(0))
    try:
        _check_message(topic, message, now_ms)
        kept = _checked(topic, message)
    except InvalidMessage as error:
        raise InvalidMessage(f"The message of the schedule {name}: {fault_of(error)}") from None
    since_ms = now_ms()
    found = Schedule(
        name,
        topic.name,
        kept,
        cron=None if cron is None else " ".join(cron.split()),
        every_ms=every_ms,
        timezone=timezone,
        first_ms=_moment("first", first),
        last_ms=_moment("last", last),
        catch_up=catch_up,
        overlap=overlap,
        since_ms=since_ms,
        begin_ms=since_ms if every_ms is not None and first is None else None,
    )
    found.outgoing(topic, found.since_ms, now_ms)
    return found


def _checked(topic: TopicDefinition, given: Message | bytes | str) -> Message:
    """Return a message as schedules keep it: in bytes and ms."""
    message = given if isinstance(given, Message) else Message(given)
    texts: dict[str, Any] = {
        name: value.encode() if isinstance(value, str) else value
        for name in _TEXTS
        if (value := getattr(message, name)) is not None
    }
    waits: dict[str, Any] = {
        name: ms
        for name in _DURATIONS
        if (ms := wait_ms(getattr(message, name))) is not None  # others: refused when it is sent
    }
    headers = headers_of(message.headers, 0) or None
    size = sum(len(text) for text in texts.values() if isinstance(text, bytes))
    size += sum(len(name) + len(value or b"") for name, value in headers or ())
    if size > LARGEST_MESSAGE_BYTES:
        raise InvalidOption(
            f"The message of a schedule of topic {topic.name} has {size} bytes. Accepted: at most "
            f"{LARGEST_MESSAGE_BYTES}; send a name of what is larger."
        )
    return replace(message, headers=headers, **texts, **waits)


def _check_message(topic: TopicDefinition, given: Any, now_ms: Callable[[], int]) -> None:
    """Refuse what send would refuse. Raises InvalidMessage."""
    message = given if isinstance(given, Message) else Message(given)
    for name in ("fixed_time", "expires_at"):
        if getattr(message, name) is not None:
            instead = "delay" if name == "fixed_time" else "time_to_live"
            raise InvalidOption(
                f"{name}={getattr(message, name)!r} is not accepted in a schedule, whose messages "
                f"each have a time of their own. Accepted: {instead}, a duration after it.",
                name=name,
            )
    if topic.type is TopicType.FIXED_TIME and message.delay is None:
        message = replace(message, fixed_time=now_ms())
    outgoing([message], Message(), topic, now_ms=now_ms)


def _check_choice(name: str, given: str, accepted: tuple[str, ...]) -> None:
    if given not in accepted:
        raise InvalidOption.of(name, given, ", ".join(accepted))


def _zone_of(timezone: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidOption.of(
            "timezone",
            timezone,
            "a name of the IANA database such as Europe/Zurich (a system without that database "
            "needs pip install tzdata)",
            "is not a known time zone",
        ) from None


def _interval_ms(every: Duration) -> int:
    ms = wait_ms(every)
    if ms is None or not SHORTEST_INTERVAL_MS <= ms <= LONGEST_WAIT_MS:
        accepted = f"at least 1s: {ACCEPTED_DURATION}; a timedelta; or whole milliseconds"
        raise InvalidOption.of("every", every, accepted)
    return ms


def _cronsim() -> ModuleType:
    try:
        return import_module("cronsim")
    except ModuleNotFoundError:
        raise InvalidOption(
            "cron needs the package cronsim: pip install 'rmq-spark[schedules]'"
        ) from None


def _parsed_cron(cron: str, local: datetime, backward: bool = False) -> Iterator[datetime]:
    """Parse an expression. Raises InvalidOption; so may one that another cronsim accepted."""
    cronsim = _cronsim()
    accepted = (
        "five fields (minute, hour, day of the month, month, day of the week), such as "
        "'0 3 * * *', or six, of which the first is the second"
    )
    if not isinstance(cron, str):
        raise InvalidOption.of("cron", cron, accepted, "is not a text")
    try:
        return cast(Iterator[datetime], cronsim.CronSim(cron, local, reverse=backward))
    except (cronsim.CronSimError, ValueError) as error:
        raise InvalidOption.of("cron", cron, accepted, f"is not accepted ({error})") from None


def _moment(name: str, given: int | datetime | None) -> int | None:
    ms = moment_ms_of(given)
    if given is not None and (ms is None or not 0 <= ms <= HIGHEST_SCORE):
        raise InvalidOption.of(name, given, "ms since 1970, or a datetime with a time zone")
    return ms


# -- in Redis


def put(broker: Administration, wanted: Schedule) -> Schedule:
    """Create a schedule, or change the one of its name. Returns it as Redis has it now.

    One that is as wanted stays as it is. A pause stays. If its times stay, none of its occurrences
    is lost. Intervals that stay go on from where they began.
    """

    def change(old: Schedule | None) -> Schedule:
        if old is None:
            return _occurring(wanted)
        now_ms, since_ms = wanted.since_ms, old.since_ms
        had_ended = old.last_ms is not None and old.last_ms < now_ms
        if old.times != wanted.times or (had_ended and old.last_ms != wanted.last_ms):
            since_ms = max(now_ms, since_ms + 1)
        begin_ms = wanted.begin_ms
        if begin_ms is not None and (old.every_ms, old.first_ms) == (wanted.every_ms, None):
            begin_ms = old.since_ms if old.begin_ms is None else old.begin_ms
        new = replace(wanted, paused=old.paused, since_ms=since_ms, begin_ms=begin_ms)
        return old if new == old else _occurring(new)

    return _change(broker, wanted.name, change)


def pause(broker: Administration, name: str, paused: bool) -> Schedule:
    """Pause or resume a schedule. Raises InvalidOption for an unknown name."""

    def change(old: Schedule | None) -> Schedule:
        if old is None:
            known = ", ".join(one.name for one in schedules(broker)) or "none"
            raise InvalidOption.of("name", name, f"one of {known}", "is not a schedule")
        since_ms = old.since_ms
        if old.paused and not paused:  # what was missed in the pause stays missed
            since_ms = max(broker.server.now_ms(), since_ms + 1)
        return replace(old, paused=paused, since_ms=since_ms)

    return _change(broker, name, change)


def _occurring(schedule: Schedule) -> Schedule:
    if schedule.next_after(schedule.since_ms) is None:
        raise InvalidOption(
            f"The schedule {schedule.name} ({schedule.rule}) never occurs from now on. Accepted: "
            "one that does. Look at cron, first and last."
        )
    return schedule


def remove(broker: Administration, name: str) -> bool:
    """Remove a schedule. Return whether there was one. What it has sent stays."""
    key, found = schedules_key(broker.key_prefix), None
    if is_name(name):
        found = broker.server.command("HGET", key, name)
    if found is None:
        return False
    if not replace_field(broker.server, key, name, found, ""):
        return remove(broker, name)
    try:
        schedule = Schedule.from_json(name, found)
    except ScriptFailed:  # then nobody knows where its note is
        return True
    if topic := broker.find(schedule.topic):
        notes = Keys(topic.name, broker.key_prefix).schedules(slot_of(schedule, topic))
        note = broker.server.command("HGET", notes, name)
        since_ms = -1
        with suppress(ScriptFailed):  # one that cannot be read goes, too
            since_ms, _ = parse_note(schedule, note or b"")
        # Another one of this name may have occurred by now.
        if note and since_ms <= schedule.since_ms:
            replace_field(broker.server, notes, name, note, "")
    return True


def remove_of(broker: Administration, topic: str) -> None:
    """Remove the schedules of a topic that was deleted. Logs those that cannot be read."""
    key = schedules_key(broker.key_prefix)
    for field, text in fields_of(broker.server.command("HGETALL", key)):
        name = field.decode(errors="replace")
        try:
            is_of_topic = Schedule.from_json(name, text).topic == topic
        except ScriptFailed as error:
            _log.warning("rmq: this may be of topic %s, which was deleted: %s", topic, error)
            continue
        if is_of_topic and not replace_field(broker.server, key, field, text, ""):
            remove_of(broker, topic)  # again: it has changed meanwhile


def slot_of(schedule: Schedule, topic: TopicDefinition) -> int:
    """Return the slot of a schedule's messages, which also has its note."""
    message = schedule.message
    name = message.key if topic.keyed else message.content
    basis = name if message.slot_basis is None else message.slot_basis
    return topic.slot_of(basis)  # type: ignore[arg-type]  # bytes: _checked


def schedules(broker: Administration, failed: Failed | None = None) -> list[Schedule]:
    """Return all schedules, sorted by name. failed: as for Administration.topics."""
    return parse_fields(broker, schedules_key(broker.key_prefix), Schedule.from_json, failed)


class ScheduleSeen(NamedTuple):
    """A schedule and what Redis knows of it. Times in ms since 1970.

    last_ms: its last occurrence, None before the first. next_ms: the next one, None if there is
    none. late_ms: how long that one has been due; 0 if the schedule waits, as overlap="wait" has
    it, for its last message.
    """

    schedule: Schedule
    last_ms: int | None
    next_ms: int | None
    late_ms: int
    waits: bool = False


def seen(broker: Administration, failed: Failed | None = None) -> list[ScheduleSeen]:
    """Return all schedules with their occurrences, sorted by name.

    failed: as for Administration.topics; also for those whose occurrences cannot be told here.
    """
    failed = failed or broker.left_out
    found = schedules(broker, failed)
    # A topic that cannot be read is told elsewhere. Here, its schedules are late.
    topics = {one.name: one for one in broker.topics(failed=lambda *_: None)} if found else {}
    asked: dict[str, tuple[Any, ...]] = {}
    for schedule in found:
        if schedule.topic in topics:
            try:
                slot = slot_of(schedule, topics[schedule.topic])
            except OF_A_SCHEDULE as error:
                failed(schedule.name, error)
                continue
            key = Keys(schedule.topic, broker.key_prefix).schedules(slot)
            asked[schedule.name] = ("HGET", key, schedule.name)
    notes = _notes(broker, asked, failed)
    now_ms = broker.server.now_ms()
    all_seen = []
    for schedule in found:
        if schedule.topic in topics and schedule.name not in notes:
            continue
        try:
            one = _seen(schedule, notes.get(schedule.name), now_ms)
            if one.late_ms and schedule.overlap == WAIT and schedule.topic in topics:
                topic = topics[schedule.topic]
                queue = Queue(broker.server, topic, key_prefix=broker.key_prefix, group=None)
                if is_undone(queue, schedule):
                    one = one._replace(late_ms=0, waits=True)
            all_seen.append(one)
        except OF_A_SCHEDULE as error:
            failed(schedule.name, error)
    return all_seen


def _notes(
    broker: Administration, asked: Mapping[str, tuple[Any, ...]], failed: Failed
) -> dict[str, Any]:
    try:
        return dict(zip(asked, broker.server.commands([*asked.values()]), strict=True))
    except WrongKeyType as error:
        if len(asked) == 1:
            failed(next(iter(asked)), error)
            return {}
    alone = [_notes(broker, {name: command}, failed) for name, command in asked.items()]
    return {name: note for one in alone for name, note in one.items()}


def is_undone(queue: Queue, schedule: Schedule) -> bool:
    """Return whether a message of the schedule waits or is in progress in any group."""
    message, topic = schedule.message, queue.definition
    name = message.key if topic.keyed else message.content
    slot = slot_of(schedule, topic)
    for group in topic.groups:
        of_group = queue.of_group(group)
        found = of_group.ask(reading.find, {slot: [name]})  # type: ignore[list-item]
        if any(page.kind is not QueueKind.DEAD for copies in found for page in copies):
            return True
    return False


def _seen(schedule: Schedule, note: bytes | None, now_ms: int) -> ScheduleSeen:
    last_ms = parse_note(schedule, note)[1] if note else None
    after_ms = last_after(schedule, note or b"")
    after_ms = now_ms if is_ahead(after_ms, now_ms) else after_ms
    next_ms = None if schedule.paused else schedule.following(after_ms)
    late_ms = 0 if next_ms is None else max(0, now_ms - next_ms)
    return ScheduleSeen(schedule, last_ms, next_ms, late_ms)


def parse_note(schedule: Schedule, note: bytes | str) -> tuple[int, int]:
    """Parse "sinceMs occurrenceMs", or nothing: zeros. Raises ScriptFailed for any other text."""
    try:
        since_ms, last_ms = map(int, note.split()) if note else (0, 0)
        if not 0 <= min(since_ms, last_ms) <= max(since_ms, last_ms) <= HIGHEST_SCORE:
            raise ValueError
    except ValueError:
        name = schedule.name
        raise ScriptFailed(
            f"When the schedule {name} last occurred cannot be read: {note[:200]!r}. Remove it, "
            f"and schedule it again: rmq unschedule {name}."
        ) from None
    return since_ms, last_ms


def last_after(schedule: Schedule, note: bytes | str) -> int:
    """Return the time after which occurrences count, by the note of the last one.

    HIGHEST_SCORE, so never, if the note is of a later definition. Raises ScriptFailed.
    """
    since_ms, last_ms = parse_note(schedule, note)
    if since_ms > schedule.since_ms:
        return HIGHEST_SCORE
    # One of this definition lies before it if the definition is of a clock that was set back.
    return last_ms if note and since_ms == schedule.since_ms else max(last_ms, schedule.since_ms)


def is_ahead(after_ms: int, now_ms: int) -> bool:
    """Return whether last_after is of a clock that ran ahead. now_ms: read after the note."""
    return now_ms + MISSED_AFTER_MS < after_ms < HIGHEST_SCORE


def _change(
    broker: Administration, name: str, change: Callable[[Schedule | None], Schedule]
) -> Schedule:
    """Create or replace a schedule, again if it has changed meanwhile."""
    key = schedules_key(broker.key_prefix)
    while True:
        text = broker.server.command("HGET", key, name)
        old = Schedule.from_json(name, text) if text else None
        new = change(old)
        if new == old:
            return new
        if text:
            done = replace_field(broker.server, key, name, text, new.to_json())
        else:
            done = broker.server.command("HSETNX", key, name, new.to_json())
        if done:
            return new
