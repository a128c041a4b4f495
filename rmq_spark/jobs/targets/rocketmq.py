"""The target rocketmq of an export: a topic, and what a task does to send records to it.

The extra rocketmq brings the client for Python.
"""

import functools
import logging
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.targets.base import (
    NUMBER,
    ExportBatch,
    Place,
    Target,
    check_amount,
    note_in_folder,
    refused_by_shape,
)
from rmq_spark.jobs.targets.records import ID, TEXT, Columns, check_columns, records
from rmq_spark.spark.schemas import HEADERS

_COLUMNS: Columns = {"key": TEXT, "value": TEXT, "headers": (HEADERS,)}
_ACCEPTED_COLUMNS = (
    "value and key (STRING or BINARY) and headers, such as --select 'content AS value, key'."
)
# Seconds that a proxy may take to answer.
ANSWERS_S = 10
_ADDRESS = re.compile(r"(https?://)?[^\s:;/]+:\d{1,5}")
_TLS = "https://"
_SECRETS = {"accessKey": "RMQ_ROCKETMQ_ACCESS_KEY", "secretKey": "RMQ_ROCKETMQ_SECRET_KEY"}
_ACCEPTED = ("endpoints", "topic", *_SECRETS)
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


class RocketMQTarget(Target):
    """A topic of RocketMQ as the target of an export: at least once, by all tasks."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._topic = RocketMQTopic.of(place.options)
        self._is_fifo = self._topic.is_fifo()

    def write(self, batch: ExportBatch) -> int:
        refused: dict[int, object] = {**refused_by_shape(batch)}
        rows = batch.shape(batch.without(refused))
        if self.place.given.select:
            check_columns(rows, _COLUMNS, ["value"], "No record for RocketMQ", _ACCEPTED_COLUMNS)
        else:
            rows = rows.withColumnRenamed("content", "value")
        send = sending(self._topic, self._is_fifo)
        for number, reason in records(batch, rows, _COLUMNS).mapInArrow(send, REPORT).collect():
            if number is None:
                raise JobFailed(reason)
            refused[number] = reason
        check_amount(refused, batch.most_refused)
        note_in_folder(batch, refused, self.place.exceptions)
        return len(refused)


@dataclass(frozen=True)
class RocketMQTopic:
    """A topic, and how to reach it. The repr shows no secret.

    endpoints: the addresses of proxies, separated by semicolons. access_key, secret_key: empty if
    the proxy asks for none.
    """

    endpoints: str
    name: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "RocketMQTopic":
        for name in options:
            if name not in _ACCEPTED:
                raise InvalidOption(
                    f"The format rocketmq has no option {name}. Accepted: {', '.join(_ACCEPTED)}."
                )
        endpoints, topic = (options.get(name, "") for name in ("endpoints", "topic"))
        if not topic or not all(_ADDRESS.fullmatch(one) for one in endpoints.split(";")):
            raise InvalidOption(
                "The format rocketmq needs --target-option endpoints=HOST:PORT, the gRPC address "
                "of a proxy (several with ';' between them, https://HOST:PORT with TLS), and "
                "--target-option topic=NAME."
            )
        keys = [
            options.get(name) or os.environ.get(variable, "") for name, variable in _SECRETS.items()
        ]
        if any(keys) and not all(keys):
            raise InvalidOption(
                "RocketMQ needs both an access key and a secret key, or none. Set "
                f"{' and '.join(_SECRETS.values())}."
            )
        return cls(endpoints, topic, *keys)

    def new_producer(self) -> Any:
        client = client_module()
        keys = client.Credentials(self.access_key, self.secret_key)
        where = client.ClientConfiguration(self.endpoints, keys, request_timeout=ANSWERS_S)
        tls = self.endpoints.startswith(_TLS)
        return client.Producer(where, (self.name,), tls_enable=tls)

    def is_fifo(self) -> bool:
        """Ask the proxy whether the messages of the topic belong to message groups.

        Raises JobFailed if the proxy does not answer, or has no such topic for messages without a
        time, a priority or a transaction.
        """
        producer = self.new_producer()
        from rocketmq.grpc_protocol import MessageType

        try:
            accepted = self._accepted(producer)
        except Exception as error:
            raise self.failure(error) from None
        finally:
            producer.rpc_client.stop()
        if MessageType.NORMAL in accepted:
            return False
        if MessageType.FIFO in accepted:
            return True
        kinds = ", ".join(sorted(MessageType.Name(one) for one in accepted)) or "none"
        raise JobFailed(
            f"The topic {self.name} of RocketMQ at {self.endpoints} accepts messages of type "
            f"{kinds}. Take a topic of type NORMAL or FIFO: mqadmin updateTopic -t {self.name} "
            "-a +message.type=NORMAL ... No message is lost: start the job again."
        )

    def failure(self, error: Exception) -> JobFailed:
        kind = type(error).__name__
        remedy = "Check that a proxy runs there and that endpoints names its gRPC port."
        if kind == "NotFoundException":
            remedy = (
                f"Create the topic {self.name}, such as with mqadmin updateTopic -t {self.name} "
                "-a +message.type=NORMAL ..., or correct its name."
            )
        elif kind in ("UnauthorizedException", "ForbiddenException"):
            remedy = f"Check {' and '.join(_SECRETS.values())}, and what they may do."
        elif kind == "TooManyRequestsException":
            remedy = "The broker is busy. Lower -o maxRecordsPerTrigger, or export later."
        return JobFailed(
            f"RocketMQ at {self.endpoints}, topic {self.name}, failed: {one_line(error)} ({kind}). "
            f"{remedy} No message is lost: start the job again."
        )

    def _accepted(self, producer: Any) -> set[int]:
        from rocketmq.grpc_protocol import QueryRouteRequest
        from rocketmq.v5.util import MessagingResultChecker

        where = producer.client_configuration.rpc_endpoints
        request = QueryRouteRequest()
        request.topic.name = self.name
        request.endpoints.CopyFrom(where.endpoints)
        asked = producer.rpc_client.query_topic_route_async(
            where, request, metadata=producer.sign(), timeout=ANSWERS_S
        )
        answer = asked.result(2 * ANSWERS_S)
        MessagingResultChecker.check(answer.status)
        return {kind for queue in answer.message_queues for kind in queue.accept_message_types}


def one_line(error: Exception) -> str:
    """Return what an error of the client says, without its full stop."""
    details = getattr(error, "details", None)  # errors of gRPC hold more, in many lines
    text = details() if callable(details) else str(error)
    return " ".join((text or "no answer").split("\nFor more")[0].split()).rstrip(".")


@functools.cache
def client_module() -> Any:
    """Import the client. Raises JobFailed if it is not installed.

    The client would write a log into the home folder. All that it notes there it also raises, so
    the log is turned off.
    """
    home = os.environ.pop("HOME", None)
    with tempfile.TemporaryDirectory(prefix="rmq-") as folder:
        os.environ["HOME"] = folder
        try:
            import rocketmq
        except ImportError as error:
            raise JobFailed(
                "--to rocketmq needs rocketmq-python-client: pip install 'rmq-spark[rocketmq]'"
            ) from error
        finally:
            os.environ.pop("HOME")
            if home is not None:
                os.environ["HOME"] = home
        log = logging.getLogger("rocketmq-python-client")
        log.setLevel(logging.CRITICAL + 1)
        for handler in [*log.handlers]:
            log.removeHandler(handler)
            handler.close()
    return rocketmq


class _Unfit(Exception):
    """The reason why a record can be no message of RocketMQ."""


def sending(
    topic: RocketMQTopic, is_fifo: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that sends all records of a task, and yields REPORT.

    is_fifo: the slot of a message is its message group, and a message is sent when the one before
    it in its group is stored. The records have _COLUMNS and ID.
    """

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sender = _Sender(topic, is_fifo)
        for batch in batches:
            yield pa.RecordBatch.from_pylist(sender.send(batch.to_pylist()), _SCHEMA)

    return send


@functools.cache
def _producer(topic: RocketMQTopic) -> Any:
    producer = topic.new_producer()
    producer.startup()
    return producer


class _Sender:
    def __init__(self, topic: RocketMQTopic, is_fifo: bool) -> None:
        self._topic = topic
        self._is_fifo = is_fifo
        self._waiting: deque[tuple[int, Future[Any]]] = deque()
        self._groups: set[str] = set()  # of what waits
        self._refused: dict[int, str] = {}
        self._has_failed = False

    def send(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send records, and wait until they are stored. Return the rows of REPORT.

        After a failure it sends nothing more, because the whole batch is redelivered.
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
