"""The command rmq send: the messages that it makes of its arguments, or of stdin."""

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Annotated, Any

import typer

from rmq_spark.cli import arguments
from rmq_spark.cli.arguments import (
    encoded_basis,
    given_values,
    moment,
    parse_values,
    parsed,
    refuse_both,
    types_of,
)
from rmq_spark.cli.json_lines import reader_of_json
from rmq_spark.cli.output import print_remark, print_result
from rmq_spark.cli.session import Ended, broker_of, ended_by_signals
from rmq_spark.client.broker import Broker
from rmq_spark.client.hints import creation, describe_missing
from rmq_spark.client.messages import LONGEST_KEY_BYTES, Message
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption, ServerError, TopicFull, UnknownTopic
from rmq_spark.inspect.fields import content_text, messages_text, without_none
from rmq_spark.options import EXPIRES_AT, TIME_TO_LIVE
from rmq_spark.protocol.sending import SendResult
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.types import TopicType

LINES_A_SEND = 10_000
# Lines are sent when none has followed for so long, and otherwise every so often.
_PAUSE_S, _LONGEST_S = 0.1, 1.0
_CHUNK_BYTES = 65_536
_Read = Callable[[list[bytes]], Iterable[Any]]
# What Python makes of bytes from the shell that are not UTF-8.
_NOT_UTF_8 = re.compile("[\ud800-\udfff]")
# How an error of Queue.send ends.
_NOTHING = "Nothing was sent."
_MESSAGE = re.compile(r"^Message (\d+)")
_HEADER = "Accepted: a name, which is UTF-8, and a value, such as --header source=web."


def send(
    context: typer.Context,
    topic: arguments.Topic,
    contents: arguments.Contents = None,
    slot_basis: arguments.SlotBasis = None,
    time_range: arguments.TimeRange = None,
    priority: arguments.Priority = None,
    fixed_time: arguments.FixedTime = None,
    delay: arguments.Delay = None,
    key: Annotated[
        str | None,
        typer.Option(help="For a keyed topic: the key of the one message, whose content is next."),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(help="For a keyed topic: the text between key and content of each message."),
    ] = None,
    from_json: Annotated[
        bool,
        typer.Option(
            "--from-json",
            help="Each message is a line of JSON, as rmq peek, dead and consume print it with "
            "--json. It can also have slotBasis, timeRange, fixedTime, delay and timeToLive. "
            "Without them, its dueTime counts, or else the options of this command.",
        ),
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of the messages; repeatable."),
    ] = None,
    time_to_live: arguments.TimeToLive = None,
    expires_at: arguments.ExpiresAt = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="In a topic with uniqueFor: send repeats, too."),
    ] = False,
    as_json: arguments.Json = False,
) -> None:
    """Send messages: the given contents, or the lines of stdin.

    "-" alone means stdin, too, except with --key: then it is the content. Write -- before contents
    that begin with a dash. In a keyed topic, use --key to send one message, with a content or
    without one, or --key-delimiter to send several: a content or line without the delimiter is a
    key alone.
    """
    given = given_values(time_range, priority, fixed_time, delay)
    headers = parse_headers(header) or None
    has_keys = key is not None or key_delimiter is not None
    queue = _queue_to_send_to(broker_of(context), topic, types_of(given), has_keys)
    read = _reader(queue, contents, key, key_delimiter, from_json)
    values = parse_values(queue, given, "sent", needed=not from_json)
    expiry = parse_expiry(queue, time_to_live, expires_at)
    basis = encoded_basis(slot_basis)
    total, sent = SendResult(0, 0), 0
    with ended_by_signals() as ended:
        for texts in _parts(contents, key, ended):
            part = _messages(read, texts, sent)
            with _saying_what_was_sent(sent, len(part)):
                if again:
                    _accept_again(queue, part, basis)
                total += queue.send(part, slot_basis=basis, headers=headers, **values, **expiry)  # type: ignore[arg-type]
            sent += len(part)
    counts = asdict(total)
    if not queue.definition.unique_for_ms:
        del counts["repeated"]
    text = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    print_result(as_json, f"{topic}: {text}", topic=topic, **counts)
    if ended.is_set():
        print_remark("A signal ended rmq. What it had not read was not sent.")
        raise typer.Exit(ended.exit_code)


def _accept_again(queue: Queue, part: list[Any], basis: bytes | None) -> None:
    topic = queue.definition
    by_slot: dict[int, list[bytes | str]] = {}
    for one in part:
        message = one if isinstance(one, Message) else Message(one)
        name = message.key if topic.keyed else message.content
        if name is not None:  # else, send refuses it
            own = basis if message.slot_basis is None else message.slot_basis
            by_slot.setdefault(topic.slot_of(name if own is None else own), []).append(name)
    queue.accept_again(by_slot)


def _messages(read: _Read, texts: list[bytes], sent: int) -> list[Any]:
    try:
        return list(read(texts))
    except InvalidMessage as error:
        error.args = (f"{error} {_sent_text(sent)}",)
        raise


@contextmanager
def _saying_what_was_sent(before: int, part: int) -> Iterator[None]:
    """Say in errors of the block, which sends a part of the input, how much of all was sent.

    before: how many messages were sent before the part. part: how many it has.
    """
    try:
        yield
    except (InvalidMessage, InvalidOption, UnknownTopic) as error:  # nothing of the part was sent
        if before:
            text = _MESSAGE.sub(lambda found: f"Message {before + int(found[1])}", str(error))
            error.args = (f"{text.removesuffix(_NOTHING).rstrip()} {_sent_text(before)}",)
        raise
    except TopicFull as error:
        done = error.sent if isinstance(error.sent, SendResult) else SendResult(0, 0)
        error.args = (f"{error} {_sent_text(before + done.new + done.merged + done.repeated)}",)
        raise
    except ServerError as error:
        if before + part > 1:
            all_before = ", and all before them were" if before else ""
            error.args = (
                f"{error} Of messages {before + 1:,} to {before + part:,}, some may have been "
                f"sent{all_before}. Those that still wait merge if you send them again.",
            )
        raise


def _sent_text(sent: int) -> str:
    return f"Before that, {messages_text(sent)} had been sent." if sent else _NOTHING


def _queue_to_send_to(broker: Broker, topic: str, given: list[TopicType], has_keys: bool) -> Queue:
    """Open the queue of a topic. If it is missing, the error shows how to create it."""
    try:
        return broker.queue(topic)
    except UnknownTopic:
        command = creation(broker, topic, given, keyed=has_keys)
        remedy = f"Create it with {command}, then send again."
        raise UnknownTopic(f"{describe_missing(broker, topic)} {remedy}") from None


def _parts(contents: list[str] | None, key: str | None, ended: Ended) -> Iterable[list[bytes]]:
    """Return the texts to send: the contents at once; of stdin, which may be endless, in parts."""
    if key is not None or (contents and contents != ["-"]):
        return [list(map(os.fsencode, contents or ()))]
    return _parts_of_stdin(ended) if sys.stdin else ()


def _parts_of_stdin(ended: Ended) -> Iterator[list[bytes]]:
    """Yield lines until stdin or the command ends. None waits long for those after it."""
    lines: list[bytes] = []
    begun: list[bytes] = []  # of the next line
    yielded_s, chunk = time.monotonic(), b"\n"
    while chunk and not ended.is_set():
        is_there, _, _ = select.select([sys.stdin], [], [], _PAUSE_S)
        if is_there:
            chunk = os.read(sys.stdin.fileno(), _CHUNK_BYTES)
            begun.append(chunk)
            if b"\n" in chunk:
                *found, rest = b"".join(begun).split(b"\n")
                lines += [line.rstrip(b"\r") for line in found]
                begun = [rest]
            elif not chunk and any(begun):
                lines.append(b"".join(begun).rstrip(b"\r"))
        while lines and (
            len(lines) >= LINES_A_SEND or not is_there or time.monotonic() - yielded_s > _LONGEST_S
        ):
            yield lines[:LINES_A_SEND]
            del lines[:LINES_A_SEND]
            yielded_s = time.monotonic()
    if lines:
        yield lines


def parse_headers(given: Iterable[str] | None) -> list[tuple[str, bytes]]:
    headers = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name and not _NOT_UTF_8.search(name)):
            shown = content_text(os.fsencode(text))
            raise InvalidOption(f"--header={shown!r} is not accepted. {_HEADER}")
        headers.append((name, os.fsencode(value)))
    return headers


def parse_expiry(
    queue: Queue, time_to_live: str | None, expires_at: str | None
) -> dict[str, int | None]:
    if None not in (time_to_live, expires_at):
        refuse_both("--time-to-live", "--expires-at")
    return {
        "time_to_live": parsed(TIME_TO_LIVE.called("--time-to-live"), time_to_live),
        "expires_at": moment(queue, EXPIRES_AT.called("--expires-at"), expires_at),
    }


def _reader(
    queue: Queue,
    contents: list[str] | None,
    key: str | None,
    delimiter: str | None,
    from_json: bool,
) -> _Read:
    """Return what makes messages of texts, as ``Queue.send`` takes them. It may be called again.

    With a key, the contents are the only payload, and none means no payload. delimiter: the text
    that ends the key in each text.
    """
    if from_json:
        if has_keys := list(without_none({"--key": key, "--key-delimiter": delimiter})):
            raise InvalidOption(
                f"{has_keys[0]} and --from-json exclude each other. Accepted: the field key in the "
                f"JSON of a message. {_NOTHING}"
            )
        return reader_of_json(queue)
    _check_keys(queue.definition, contents, key, delimiter)
    if key is not None:
        return lambda texts: [Message(texts[0] if texts else None, key=os.fsencode(key))]
    if delimiter is not None:
        return partial(_keyed, queue.definition.name, os.fsencode(delimiter), count(1))
    return iter


def _check_keys(
    topic: TopicDefinition, contents: list[str] | None, key: str | None, delimiter: str | None
) -> None:
    given = list(without_none({"--key": key, "--key-delimiter": delimiter}))
    if given and not topic.keyed:
        raise InvalidOption(
            f"{given[0]} is not for topic {topic.name}, which is not keyed: its messages merge by "
            f"their content. Leave {given[0]} out. Nothing was sent."
        )
    if topic.keyed and len(given) != 1:
        found = "--key and --key-delimiter exclude each other" if given else "No key is given"
        raise InvalidOption(
            f"{found}. Topic {topic.name} is keyed. Accepted: --key KEY with one content or none, "
            "or --key-delimiter TEXT, with contents or lines such as KEY TEXT CONTENT. Nothing was "
            "sent."
        )
    if key is not None and len(contents or ()) > 1:
        raise InvalidOption(
            f"--key={key!r} is for one message, but there are {len(contents or ())} contents. "
            "Accepted: one content or none; --key-delimiter sends several. Nothing was sent."
        )
    if key is not None and not 1 <= len(os.fsencode(key)) <= LONGEST_KEY_BYTES:
        raise InvalidOption(
            f"--key is {len(os.fsencode(key)):,} bytes long. Accepted: 1 to {LONGEST_KEY_BYTES:,} "
            "bytes. Nothing was sent."
        )
    if delimiter == "":
        raise InvalidOption.of("--key-delimiter", "", "at least one character")


def _keyed(
    topic: str, delimiter: bytes, numbers: Iterator[int], texts: Iterable[bytes]
) -> Iterator[Message]:
    for text, number in zip(texts, numbers, strict=False):
        key, found, content = text.partition(delimiter)
        if not 1 <= len(key) <= LONGEST_KEY_BYTES:
            raise InvalidMessage(
                f"Message {number} ({content_text(text)!r}): the key before --key-delimiter is "
                f"{len(key):,} bytes long. Accepted in the keyed topic {topic}: 1 to "
                f"{LONGEST_KEY_BYTES:,} bytes."
            )
        yield Message(content if found else None, key=key)
