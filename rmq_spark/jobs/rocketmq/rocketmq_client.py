"""A topic of RocketMQ, its options, and the client for Python, which the extra rocketmq brings."""

import functools
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import JobFailed

# Seconds that a proxy may take to answer.
ANSWERS_S = 10
_ADDRESS = re.compile(r"(https?://)?[^\s:;/]+:\d{1,5}")
_TLS = "https://"
_SECRETS = {
    "accessKey": "RMQ_ROCKETMQ_ACCESS_KEY",
    "secretKey": "RMQ_ROCKETMQ_SECRET_KEY",
}
_ACCEPTED = ("endpoints", "topic", *_SECRETS)


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
        """Return the topic that the options of the format name. Raises InvalidOption."""
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
        there = {
            "accessKey": os.environ.get("RMQ_ROCKETMQ_ACCESS_KEY", ""),
            "secretKey": os.environ.get("RMQ_ROCKETMQ_SECRET_KEY", ""),
        }
        keys = [options.get(name) or there[name] for name in _SECRETS]
        if any(keys) and not all(keys):
            raise InvalidOption(
                "RocketMQ needs both an access key and a secret key, or none. Set "
                f"{' and '.join(_SECRETS.values())}."
            )
        return cls(endpoints, topic, *keys)

    def new_producer(self) -> Any:
        """Make a producer that is not started. Raises JobFailed without the client."""
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
        """Return the error of the job, in one line, for an error of the client."""
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
        """Return the types of messages that the topic accepts."""
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
                "--to rocketmq needs the package rocketmq-python-client: pip install '.[rocketmq]'."
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
