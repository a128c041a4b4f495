"""RMQ for Spark: delayed, merged and prioritised messages in Redis sorted sets.

Names that need Spark are loaded when they are first used, so a service that only sends needs
neither pyspark nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rmq_spark.client import (
    Batch,
    Broker,
    Consumer,
    Listener,
    Message,
    Queue,
    connect,
)
from rmq_spark.client.scheduler import Scheduler
from rmq_spark.client.schedules import Schedule
from rmq_spark.client.service import listener, run
from rmq_spark.errors import (
    AlreadyCommitted,
    CheckpointRefused,
    ClaimError,
    ConsumerMisused,
    ExclusiveSlot,
    Fenced,
    GroupNotEmpty,
    InvalidMessage,
    InvalidOption,
    LeaseLost,
    NotReplicated,
    OutboxError,
    OutboxMisused,
    OutboxUnavailable,
    OwnershipError,
    OwnershipRefused,
    OwnershipUnavailable,
    RmqError,
    ScriptFailed,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
    ServerUnsuitable,
    ServerUntrusted,
    StageLost,
    TopicError,
    TopicFull,
    TopicMismatch,
    UnknownTopic,
    UnreadableContent,
    UnusableFunction,
    WrongKeyType,
)
from rmq_spark.outbox import Outbox, Relay, Relayed
from rmq_spark.protocol.claims import Delivered, Figures, QueueFigures
from rmq_spark.protocol.pages import Bounds, Entry, Page, QueueKind
from rmq_spark.protocol.sending import SendResult
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.types import TopicType
from rmq_spark.topics.verdicts import Bury, Hold, Retry, Snooze

if TYPE_CHECKING:
    from rmq_spark.spark.datasource import RmqDataSource, register
    from rmq_spark.spark.listener.each_message import EachMessage, each_message

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Bounds",
    "Broker",
    "Consumer",
    "Delivered",
    "EachMessage",
    "Entry",
    "Figures",
    "Listener",
    "Message",
    "Outbox",
    "Page",
    "Queue",
    "QueueFigures",
    "QueueKind",
    "Relay",
    "Relayed",
    "RmqDataSource",
    "Schedule",
    "Scheduler",
    "SendResult",
    "TopicDefinition",
    "TopicType",
    "__version__",
    "connect",
    "each_message",
    "listener",
    "register",
    "run",
    # what a function may raise
    "Bury",
    "Hold",
    "Retry",
    "Snooze",
    # what may be wrong
    "CheckpointRefused",
    "ClaimError",
    "ConsumerMisused",
    "ExclusiveSlot",
    "GroupNotEmpty",
    "InvalidMessage",
    "InvalidOption",
    "LeaseLost",
    "NotReplicated",
    "OutboxError",
    "OutboxMisused",
    "OutboxUnavailable",
    "OwnershipError",
    "OwnershipRefused",
    "OwnershipUnavailable",
    "RmqError",
    "ScriptFailed",
    "ServerError",
    "ServerFull",
    "ServerRefused",
    "ServerUnavailable",
    "ServerUnsuitable",
    "ServerUntrusted",
    "AlreadyCommitted",
    "StageLost",
    "Fenced",
    "TopicError",
    "TopicFull",
    "TopicMismatch",
    "UnknownTopic",
    "UnreadableContent",
    "UnusableFunction",
    "WrongKeyType",
]

# The names that need Spark, and the module of each.
_SPARK_MODULES = {
    "EachMessage": "listener.each_message",
    "RmqDataSource": "datasource",
    "each_message": "listener.each_message",
    "register": "datasource",
}
_NEED_SPARK = _SPARK_MODULES.keys()


def __getattr__(name: str) -> Any:
    if name in _NEED_SPARK:
        try:
            module = import_module(f"rmq_spark.spark.{_SPARK_MODULES[name]}")
        except ModuleNotFoundError as error:
            raise ImportError(
                f"rmq_spark.{name} needs {error.name}. Install it with: pip install "
                "'rmq-spark[spark]'"
            ) from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
