"""The Python client, which needs Redis but not Spark.

Read broker first (topics), then queue (sending) and the package receiving (consumer, listener).
service runs many listeners in one process. schedules says when a message is sent again, and
scheduler sends it.
administration creates and changes topics. messages checks the values of messages. staging and
exactly_once publish the batches of an exactly-once sink. repair requeues, purges and gives back.
hints writes the commands that errors recommend. tracing makes OpenTelemetry's spans.
"""

from rmq_spark.client.broker import Broker, connect
from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.batch import Batch
from rmq_spark.client.receiving.consumer import Consumer
from rmq_spark.client.receiving.listener import Listener
from rmq_spark.errors import RmqError
from rmq_spark.protocol.claims import Delivered, Figures, QueueFigures
from rmq_spark.protocol.sending import SendResult
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.types import TopicType

__all__ = [
    "Batch",
    "Broker",
    "Consumer",
    "Delivered",
    "Figures",
    "Listener",
    "Message",
    "Queue",
    "QueueFigures",
    "RmqError",
    "SendResult",
    "TopicDefinition",
    "TopicType",
    "connect",
]
