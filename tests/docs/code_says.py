"""What the code says of its names, in the words of docs/reference.md."""

import inspect
import re

import rmq_spark

# Methods that other parts of the package call.
INSIDE = {"Queue": ("ask",), "Consumer": ("commit", "mark_unread", "renew", "rollback")}
CLASSES = (
    *(rmq_spark.Broker, rmq_spark.Queue, rmq_spark.Consumer, rmq_spark.Batch),
    *(rmq_spark.Outbox, rmq_spark.Relay),
)
VALUES = (
    *(rmq_spark.Message, rmq_spark.SendResult, rmq_spark.Delivered, rmq_spark.TopicDefinition),
    *(rmq_spark.Figures, rmq_spark.QueueFigures, rmq_spark.Bounds, rmq_spark.Entry),
    rmq_spark.Relayed,
)
FUNCTIONS = (rmq_spark.connect, rmq_spark.each_message, rmq_spark.register)


def signatures():
    """By heading, name(parameters) -> type of all that users call."""
    found = {
        one.__name__: {signature(name, call) for name, call in methods(one)} for one in CLASSES
    }
    found["Connect"] = {signature("connect", rmq_spark.connect)}
    found["Values"] = {signature(one.__name__, one) for one in VALUES}
    found["With Spark"] = {
        signature(name, getattr(rmq_spark, name)) for name in ("each_message", "register")
    }
    return found


def methods(one):
    found = inspect.getmembers(one, inspect.isfunction)
    hidden = INSIDE.get(one.__name__, ())
    return [(name, call) for name, call in found if not name.startswith("_") and name not in hidden]


def signature(name, call):
    """A signature without self, and with types by their own names."""
    text = re.sub(r"^\(self(, )?", "(", str(inspect.signature(call)))
    text = re.sub(r"<QueueKind\.(\w+): '\w+'>", r"QueueKind.\1", text)
    text = re.sub(r"<function .*? at \w+>", "...", text)
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Za-z])(?<!QueueKind\.)", "", text)
    return f"{name}{text}".replace("'EachMessage'", "EachMessage")
