"""What a task does: send records, and report those that RocketMQ never takes."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from rmq_spark.jobs.rocketmq.rocketmq_client import (
    ANSWERS_S,
    RocketMQTopic,
    client_module,
    one_line,
)
from rmq_spark.jobs.targets.named_records import ID
from rmq_spark.jobs.targets.target import NUMBER

# What a task reports. A refused message has its NUMBER; a failure of the whole task has none.
REPORT = f"{NUMBER} BIGINT, reason STRING"
_SCHEMA = pa.schema([(NUMBER, pa.int64()), ("reason", pa.string())])
# Messages that are sent without waiting for the answer to the first of them.
_IN_FLIGHT = 500
# The client tries each message three times.
_PATIENCE_S = 4 * ANSWERS_S
_MOST_BYTES = 4 * 1024 * 1024  # of a body, in the client
# Answers that are about the message alone: the same message gets the same answer again.
_ABOUT_THE_MESSAGE = (
    "ILLEGAL_MESSAGE_KEY",
    "ILLEGAL_MESSAGE_PROPERTY_KEY",
    "MESSAGE_BODY_EMPTY",
    "MESSAGE_BODY_TOO_LARGE",
    "MESSAGE_PROPERTIES_TOO_LARGE",
    "PAYLOAD_TOO_LARGE",
)


class _Unfit(Exception):
    """The reason why a record can be no message of RocketMQ."""


def sending(
    topic: RocketMQTopic, is_fifo: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that sends all records of a task, and yields REPORT.

    is_fifo: the slot of a message is its message group, and a message is sent when the one before
    it in its group is stored. The records have the columns of rocketmq_target, and ID.
    """

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sender = _Sender(topic, is_fifo)
        for batch in batches:
            yield pa.RecordBatch.from_pylist(sender.send(batch.to_pylist()), _SCHEMA)

    return send


@functools.cache
def _producer(topic: RocketMQTopic) -> Any:
    """Return the producer of this process, which outlives a task."""
    producer = topic.new_producer()
    producer.startup()
    return producer


class _Sender:
    """Sends the records of a task, several at a time."""

    def __init__(self, topic: RocketMQTopic, is_fifo: bool) -> None:
        self._topic = topic
        self._is_fifo = is_fifo
        self._waiting: deque[tuple[int, Future[Any]]] = deque()
        self._groups: set[str] = set()  # of what waits
        self._refused: dict[int, str] = {}
        self._has_failed = False

    def send(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send records, and wait until they are stored. Return the rows of REPORT.

        After a failure it sends nothing more, because the whole batch comes again.
        """
        if self._has_failed:
            return []
        self._refused = {}
        try:
            for row in rows:
                self._send(row)
            self._settle(0)
        except Exception as error:
            self._has_failed = True
            return [{NUMBER: None, "reason": str(self._topic.failure(error))}]
        return [{NUMBER: number, "reason": why} for number, why in self._refused.items()]

    def _send(self, row: dict[str, Any]) -> None:
        try:
            message = _message(row, self._topic.name)
        except _Unfit as why:
            self._refused[row[NUMBER]] = str(why)
            return
        if self._is_fifo:
            message.message_group = row["rmq-slot"]
            if message.message_group in self._groups:
                self._settle(0)
            self._groups.add(message.message_group)
        sent = _producer(self._topic).send_async(message)
        self._waiting.append((row[NUMBER], sent))
        self._settle(_IN_FLIGHT)

    def _settle(self, most: int) -> None:
        """Wait for the oldest answers, until at most so many are missing."""
        while len(self._waiting) > most:
            number, sent = self._waiting.popleft()
            try:
                sent.result(_PATIENCE_S)
            except Exception as error:
                if not _is_about_the_message(error):
                    raise
                self._refused[number] = f"RocketMQ refuses it: {one_line(error)}."
        if not self._waiting:
            self._groups.clear()


def _message(row: dict[str, Any], topic: str) -> Any:
    """Make a message of a record. Raises _Unfit."""
    if not row["value"]:
        raise _Unfit("RocketMQ takes no message without content.")
    if len(row["value"]) > _MOST_BYTES:
        raise _Unfit(f"RocketMQ takes at most {_MOST_BYTES:,} bytes of content.")
    message = client_module().Message()
    message.topic, message.body = topic, row["value"]
    key = _text(row["key"], "The key")
    if key and key.strip():
        message.keys = key
    for header in row["headers"] or ():
        if header["value"] is not None:
            value = _text(header["value"], f"The header {header['key']}")
            message.properties[header["key"]] = value
    message.properties.update({name: row[name] for name in ID})
    return message


def _text(value: bytes | None, what: str) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        raise _Unfit(f"{what} is not UTF-8, and RocketMQ takes only text there.") from error


def _is_about_the_message(error: Exception) -> bool:
    from rocketmq.grpc_protocol import Code

    return getattr(error, "code", None) in [Code.Value(name) for name in _ABOUT_THE_MESSAGE]
