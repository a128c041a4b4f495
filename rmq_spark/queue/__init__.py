"""The queue itself: plain Python and Redis. Works without Spark."""

from rmq_spark.queue.broker import Broker, connect
from rmq_spark.queue.claims import Delivered, Figures, QueueFigures
from rmq_spark.queue.consumer import Batch, Consumer
from rmq_spark.queue.errors import RmqError
from rmq_spark.queue.messages import Message, SendResult
from rmq_spark.queue.queue import Queue
from rmq_spark.queue.topic import TopicDefinition, TopicType

__all__ = [
    "Batch",
    "Broker",
    "Consumer",
    "Delivered",
    "Figures",
    "Message",
    "Queue",
    "QueueFigures",
    "RmqError",
    "SendResult",
    "TopicDefinition",
    "TopicType",
    "connect",
]
