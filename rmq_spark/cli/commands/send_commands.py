"""Commands that send messages and cancel them."""

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import (
    NAMES_HELP,
    Contents,
    Delay,
    ExpiresAt,
    FixedTime,
    Json,
    Priority,
    SlotBasis,
    TimeRange,
    TimeToLive,
    Topic,
)
from rmq_spark.cli.chosen_messages import encoded, encoded_basis, print_count, remark_on_keys
from rmq_spark.cli.message_values import (
    given_values,
    message_with,
    parse_values,
    refuse_other_values,
    require_value,
    types_of,
)
from rmq_spark.cli.output import print_result
from rmq_spark.cli.sent_messages import messages_of, parse_expiry, parse_headers
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
    key: Annotated[
        str | None,
        typer.Option(help="For a keyed topic: the key of the one message, whose content is next."),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(help="For a keyed topic: the text between key and content of each message."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of the messages; repeatable."),
    ] = None,
    time_to_live: TimeToLive = None,
    expires_at: ExpiresAt = None,
    as_json: Json = False,
) -> None:
    """Send messages: the given contents, or the lines of stdin.

    Write -- before contents that begin with a dash. In a keyed topic, use --key to send one
    message, with a content or without one, or --key-delimiter to send several: a content or line
    without the delimiter is a key alone.
    """
    given = given_values(time_range, priority, fixed_time, delay)
    headers = parse_headers(header)
    has_keys = key is not None or key_delimiter is not None
    queue = _queue_to_send_to(broker_of(context), topic, types_of(given), has_keys)
    messages = messages_of(queue.definition, contents, key, key_delimiter, _lines)
    refuse_other_values(queue.definition, given, "sent")
    values = parse_values(queue, given)
    expiry = parse_expiry(queue, time_to_live, expires_at)
    require_value(queue.definition, message_with(values), "sent")
    basis = encoded_basis(slot_basis)
    new = merged = 0
    for part in _parts(messages):
        sent = queue.send(part, slot_basis=basis, headers=headers or None, **values, **expiry)  # type: ignore[arg-type]
        new, merged = new + sent.new, merged + sent.merged
    text = f"{topic}: {new:,} new, {merged:,} merged"
    print_result(as_json, text, topic=topic, new=new, merged=merged)


def cancel(
    context: typer.Context,
    topic: Topic,
    contents: Annotated[list[str], typer.Argument(help=NAMES_HELP, show_default=False)],
    slot_basis: SlotBasis = None,
    group: Annotated[
        str | None, typer.Option(help="Only for this consumer group, instead of all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Cancel messages that no consumer has claimed yet."""
    broker = broker_of(context)
    definition = broker.definition(topic)
    groups = definition.groups if group is None else (parse_group(group),)
    basis = encoded_basis(slot_basis)
    cancelled = sum(
        broker.queue(topic, group=each).cancel(encoded(contents), slot_basis=basis)
        for each in groups
    )
    if not cancelled:
        remark_on_keys(definition)
    print_count(as_json, topic, cancelled, "cancelled")


def _queue_to_send_to(broker: Broker, topic: str, given: list[TopicType], has_keys: bool) -> Queue:
    """Open the queue of a topic. Raises UnknownTopic, whose text shows how to create the topic.

    given: the topic types whose values the command line gives. has_keys: whether it gives keys.
    """
    try:
        return broker.queue(topic)
    except UnknownTopic:
        command = creation(broker, topic, given, keyed=has_keys)
        remedy = f"Create it with {command}, then send again."
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
