"""Commands that send messages and cancel them."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import (
    Contents,
    Delay,
    FixedTime,
    Json,
    Priority,
    SlotBasis,
    TimeRange,
    Topic,
)
from rmq_spark.cli.chosen_messages import encoded, encoded_basis, print_count
from rmq_spark.cli.message_values import (
    given_values,
    message_with,
    parse_values,
    refuse_other_values,
    require_value,
    types_of,
)
from rmq_spark.cli.output import print_result
from rmq_spark.cli.session import broker_of
from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.client.remedies import creation, describe_missing
from rmq_spark.errors import UnknownTopic
from rmq_spark.topics.definition import parse_group
from rmq_spark.topics.topic_types import TopicType

LINES_A_SEND = 10_000


def send(
    context: typer.Context,
    topic: Topic,
    contents: Contents = None,
    slot_basis: SlotBasis = None,
    time_range: TimeRange = None,
    priority: Priority = None,
    fixed_time: FixedTime = None,
    delay: Delay = None,
    as_json: Json = False,
) -> None:
    """Send messages: the given contents, or the lines of stdin.

    Write -- before contents that begin with a dash.
    """
    given = given_values(time_range, priority, fixed_time, delay)
    queue = _queue_to_send_to(broker_of(context), topic, types_of(given))
    refuse_other_values(queue.definition, given, "sent")
    values = parse_values(queue, given)
    require_value(queue.definition, message_with(values), "sent")
    basis = encoded_basis(slot_basis)
    new = merged = 0
    for part in _parts(map(os.fsencode, contents) if contents else _lines()):
        sent = queue.send(part, slot_basis=basis, **values)  # type: ignore[arg-type]
        new, merged = new + sent.new, merged + sent.merged
    text = f"{topic}: {new:,} new, {merged:,} merged"
    print_result(as_json, text, topic=topic, new=new, merged=merged)


def cancel(
    context: typer.Context,
    topic: Topic,
    contents: Annotated[
        list[str], typer.Argument(help="Contents of messages.", show_default=False)
    ],
    slot_basis: SlotBasis = None,
    group: Annotated[
        str | None, typer.Option(help="Only for this consumer group, instead of all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Cancel messages that no consumer has claimed yet."""
    broker = broker_of(context)
    groups = broker.definition(topic).groups if group is None else (parse_group(group),)
    basis = encoded_basis(slot_basis)
    cancelled = sum(
        broker.queue(topic, group=each).cancel(encoded(contents), slot_basis=basis)
        for each in groups
    )
    print_count(as_json, topic, cancelled, "cancelled")


def _queue_to_send_to(broker: Broker, topic: str, given: list[TopicType]) -> Queue:
    """Open the queue of a topic. Raises UnknownTopic, whose text shows how to create the topic.

    given: the topic types whose values the command line gives.
    """
    try:
        return broker.queue(topic)
    except UnknownTopic:
        remedy = f"Create it with {creation(broker, topic, given)}, then send again."
        raise UnknownTopic(f"{describe_missing(broker, topic)} {remedy}") from None


def _lines() -> Iterator[bytes]:
    """Yield the lines of stdin without their line ends."""
    for line in sys.stdin.buffer if sys.stdin else ():
        yield line.rstrip(b"\r\n")


def _parts(contents: Iterable[Any]) -> Iterator[list[Any]]:
    """Split contents into lists of LINES_A_SEND, so that stdin may be endless."""
    part: list[Any] = []
    for content in contents:
        part.append(content)
        if len(part) == LINES_A_SEND:
            yield part
            part = []
    if part:
        yield part
