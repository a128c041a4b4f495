"""What the code says of its names, in the words of docs/reference.md."""

import inspect
import re
import typing

from typer.main import get_command

import rmq_spark
from rmq_spark.cli.app import _connection, app

# Methods that other parts of the package call.
INSIDE = {"Queue": ("ask",), "Consumer": ("commit", "mark_unread", "renew", "rollback")}
CLASSES = (rmq_spark.Broker, rmq_spark.Queue, rmq_spark.Consumer, rmq_spark.Batch)
VALUES = (
    *(rmq_spark.Message, rmq_spark.SendResult, rmq_spark.Delivered, rmq_spark.TopicDefinition),
    *(rmq_spark.Figures, rmq_spark.QueueFigures, rmq_spark.Bounds, rmq_spark.Entry),
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


def commands():
    """By heading, the arguments and options of each command: name, type, default."""
    built = get_command(app)
    found = {"Before the command": parameters(built, _connection)}
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        found[f"rmq {name}"] = parameters(built.commands[name], command.callback)
    return found


def parameters(command, callback):
    """Names as they are typed; types and defaults as the function declares them."""
    declared = inspect.signature(callback).parameters
    typed = {one.name: one for one in command.params}
    return {
        shown_name(typed[name]): (shown_type(one.annotation), shown_default(one.default))
        for name, one in declared.items()
        if name != "context"
    }


def shown_name(parameter):
    if parameter.param_type_name == "argument":
        return parameter.name.upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def shown_type(annotation):
    declared, told = typing.get_args(annotation)[:2]
    names = {"bool": "flag", "int": "whole number", "Path": "path", "str": "text"}
    text = next(names[name] for name in names if re.search(rf"\b{name}\b", str(declared)))
    if text == "whole number" and told.min is not None:
        text += f", {told.min} and more" if told.max is None else f", {told.min} to {told.max}"
    return f"{text}, several" if "list" in str(declared) else text


def shown_default(default):
    if default is inspect.Parameter.empty:
        return "needed"
    return "" if default in (None, "", False) else str(default)
