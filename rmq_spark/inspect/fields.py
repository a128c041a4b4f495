"""How topics, messages and figures are shown: texts for people, fields of JSON for programs."""

import base64
import json
import logging
import os
import queue as queues
import select
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from rmq_spark.client.schedules import ScheduleSeen
from rmq_spark.inspect.figures import FULL_PERCENT, Rate, Row
from rmq_spark.protocol.bodies import Headers
from rmq_spark.protocol.claims import Delivered, Figures, QueueFigures
from rmq_spark.protocol.pages import Entry, QueueKind
from rmq_spark.topics.definition import SETTINGS_BY_FIELD, TopicDefinition, group_text
from rmq_spark.topics.parsing import time_at
from rmq_spark.topics.reasons import printable

SHOWN_BYTES = 200
# How long a line of the log is waited for before its reader counts as slow, and how many then wait.
_SLOW_READER_S = 1.0
_MOST_LINES = 1000


def messages_text(how_many: int) -> str:
    return count_text(how_many, "message")


def count_text(how_many: int, one: str, several: str = "") -> str:
    """Format a number of things: ``1 slot``. several: the plural, if not with an s."""
    return f"{how_many:,} {one if how_many == 1 else several or f'{one}s'}"


def time_text(ms: int | None) -> str | None:
    """Format ms since 1970 in ISO 8601, UTC; as ``N ms`` beyond Python's calendar; None as None."""
    if ms is None:
        return None
    try:
        text = time_at(ms).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{ms} ms"
    return text.replace("+00:00", "Z")


def time_json(ms: int | None) -> str | int | None:
    """Convert ms since 1970 to ISO 8601 in UTC. Beyond Python's calendar, it stays a number."""
    text = time_text(ms)
    return ms if text is None or text.endswith(" ms") else text


def age_text(ms: int | None) -> str:
    """Format a duration in ms in its two largest units, such as ``2h5m``; "" for None."""
    if ms is None:
        return ""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            smaller = {"d": ("h", 3600), "h": ("m", 60), "m": ("s", 1)}[unit]
            return f"{seconds // size}{unit}{seconds % size // smaller[1]}{smaller[0]}"
    return f"{seconds}s"


def content_text(content: bytes | None) -> str:
    """Format a content or key for people. Escapes control characters and bytes that are not UTF-8.

    None becomes the empty text. Cuts a content of more than SHOWN_BYTES; --json shows all of it.
    """
    if content is None:
        return ""
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    return printable(content.decode("utf-8", "backslashreplace"))


def content_json(content: bytes | None, name: str = "content") -> dict[str, str | None]:
    """Convert a content to the field content, or contentBase64 if it is not UTF-8."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content or b"").decode()}


def headers_json(headers: Headers) -> list[dict[str, str | None]]:
    return [{"key": name, **content_json(value, "value")} for name, value in headers]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def json_text(value: Any) -> str:
    """Write JSON in one line; in ASCII if a character could change how a terminal shows text."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


class PrintableFormatter(logging.Formatter):
    """A formatter of log lines, which may quote the texts of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - of logging
        """Format an exception, whose traceback has several lines."""
        return printable(super().formatException(ei), "\n")


class StderrHandler(logging.Handler):
    """Writes lines to stderr. If they are not read, the program goes on, and some are dropped.

    A full pipe or a terminal that nobody reads keeps no worker from its messages and no program
    from its end. Once lines are read again, one of them says how many are missing.

    line: a format of logging.Formatter.
    """

    def __init__(self, line: str) -> None:
        super().__init__()
        self.setFormatter(PrintableFormatter(line))
        self._process = 0
        # Reentrant, as emit must be: the collection of garbage may log amid any of its calls.
        self._lines: queues.SimpleQueue[tuple[int, bytes, threading.Event]]
        self._dropped = 0
        self._is_behind = False  # its reader is slow: nobody waits for it

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{self.format(record)}\n"
            try:
                output = sys.stderr.fileno()
                if self._process != os.getpid():  # a copy of the process has no thread
                    self._start()
            # None, an object of the program's own, or a process that may start no more threads.
            except (AttributeError, OSError, RuntimeError):
                if sys.stderr:
                    sys.stderr.write(text)
                return
            if self._lines.qsize() >= _MOST_LINES:
                self._dropped += 1
                return
            if self._dropped:
                missing = count_text(self._dropped, "line")
                text = f"rmq: {missing} of this log dropped: nobody read stderr\n{text}"
                self._dropped = 0
            written = self._put(output, text.encode("utf-8", "replace"))
            self._is_behind = self._is_behind and not self._lines.empty()
            if not self._is_behind:
                self._is_behind = not written.wait(_SLOW_READER_S)
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait a little until all is written, such as at the end of the program."""
        if self._process == os.getpid():
            self._put(2, b"").wait(_SLOW_READER_S)

    def _put(self, output: int, text: bytes) -> threading.Event:
        written = threading.Event()
        self._lines.put((output, text, written))
        return written

    def _start(self) -> None:
        self._lines, self._is_behind = queues.SimpleQueue(), False
        write = partial(_write_all, self._lines)
        threading.Thread(target=write, name="rmq-log", daemon=True).start()
        self._process = os.getpid()


def _write_all(lines: "queues.SimpleQueue[tuple[int, bytes, threading.Event]]") -> None:
    while True:
        output, text, written = lines.get()
        while text:
            try:
                text = text[os.write(output, text) :]
            except BlockingIOError:  # it does not block, as some supervisors set it
                select.select([], [output], [])
            except OSError:  # it is closed
                break
        written.set()


def schedule_json(one: ScheduleSeen) -> dict[str, Any]:
    of = one.schedule
    return without_none(
        {
            "schedule": of.name,
            "topic": of.topic,
            "cron": of.cron,
            "everyMs": of.every_ms,
            "timezone": None if of.cron is None else of.timezone,
            "first": time_json(of.first_ms),
            "last": time_json(of.last_ms),
            "catchUp": of.catch_up,
            "overlap": of.overlap,
            "paused": of.paused,
            "lastOccurrence": time_json(one.last_ms),
            "nextOccurrence": time_json(one.next_ms),
            "lateMs": one.late_ms,
        }
    )


def definition_json(topic: TopicDefinition) -> dict[str, Any]:
    settings = {
        setting.option.name + ("Ms" if name.endswith("_ms") else ""): getattr(topic, name)
        for name, setting in SETTINGS_BY_FIELD.items()
    }
    return {
        "topic": topic.name,
        "topicType": topic.type.name,
        "slotAmount": topic.slot_amount,
        **settings,
        "retryBackoffMs": list(topic.retry_backoff_ms),
        "pausedGroups": [group_text(group) for group in topic.paused_groups],
        "groups": [group_text(group) for group in topic.groups],
    }


def group_json(row: Row) -> dict[str, Any]:
    return {
        "group": row.group,
        "heldUntil": time_json(row.held_until_ms),
        "usedShares": row.used,
        "queues": queues_json(row.figures, row.now_ms),
        "counters": row.figures.counters,
        "consumers": [
            {
                "consumer": seen.consumer,
                "slots": seen.slots,
                "heldSlots": seen.held_slots,
                "seenMsAgo": seen.ms_ago,
            }
            for seen in row.known_consumers
        ],
    }


def queues_json(figures: Figures, now_ms: int) -> list[dict[str, Any]]:
    return [
        {"queue": name, "messages": of.count, "due": of.due, **_first_json(name, of, now_ms)}
        for name, of in figures.queues.items()
    ]


def _first_json(name: str, queue: QueueFigures, now_ms: int) -> dict[str, Any]:
    """Return the earliest time in a queue as a JSON field, named after its meaning; or no field."""
    if queue.oldest_ms is None:
        return {}
    if name == QueueKind.PREPARE and queue.oldest_ms <= now_ms:
        return {}  # this lease has ended: the field due counts its messages
    names = {"store": "dueTime", "prepare": "leaseEnds", "retry": "dueTime", "dead": "diedAt"}
    return {names[name]: time_json(queue.oldest_ms)}


def own_json(message: Delivered | Entry) -> dict[str, Any]:
    """Convert what a message carries to JSON fields; key, headers and expiresAt if it has them."""
    return {
        **({} if message.key is None else content_json(message.key, "key")),
        **content_json(message.content),
        **({"headers": headers_json(message.headers)} if message.headers else {}),
        **without_none({"expiresAt": time_json(message.expires_at_ms)}),
    }


def entry_json(topic: str, entry: Entry) -> dict[str, Any]:
    return {
        "topic": topic,
        "queue": entry.queue,
        "slot": entry.slot,
        **own_json(entry),
        **without_none(
            {
                "dueTime": time_json(entry.due_time_ms),
                "priority": entry.priority,
                "retriesLeft": entry.retries_left,
                "preparedAt": time_json(entry.prepared_at_ms),
                "consumer": entry.consumer,
                "diedAt": time_json(entry.died_at_ms),
                "reason": entry.reason,
            }
        ),
    }


def warnings_of(row: Row) -> list[str]:
    """What keeps messages of a group back, or soon will, in a few words each."""
    paused = row.definition.is_paused(row.group)
    found = {
        "paused": paused,
        "nobody reads": row.due and not row.consumers and not paused,
        "leases ended": row.figures.prepare.due,
        f"held until {time_text(row.held_until_ms)}": row.due and row.held_until_ms,
        **dict.fromkeys(row.full_to(FULL_PERCENT), True),
    }
    return [words for words, holds in found.items() if holds]


def row_json(row: Row, rate: Rate) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "group": row.group,
        "inPerSecond": round(rate.came, 1),
        "outPerSecond": round(rate.went, 1),
        **row.states,
        "oldestDueForMs": row.oldest_age_ms,
        "warnings": warnings_of(row),
        "consumers": [
            {
                "consumer": seen.consumer,
                **({"slots": seen.slots} if row.definition.exclusive else {}),
                "seenMsAgo": seen.ms_ago,
            }
            for seen in row.consumers
        ],
    }
