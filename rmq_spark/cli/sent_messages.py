"""The messages that rmq send makes of its arguments: their keys, headers and expiry."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from rmq_spark.client.message_bodies import LONGEST_KEY_BYTES
from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.options.topic_options import EXPIRES_AT, TIME_TO_LIVE
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsers import moment_or_relative
from rmq_spark.views.shown_texts import content_text

_HEADER = "Accepted: a name, which is UTF-8, and a value, such as --header source=web."


def parse_headers(given: Iterable[str] | None) -> list[tuple[str, bytes]]:
    """Parse the texts of --header. Raises InvalidOption for one that is not NAME=VALUE."""
    headers = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name and _is_text(name)):
            shown = content_text(os.fsencode(text))
            raise InvalidOption(f"--header={shown!r} is not accepted. {_HEADER}")
        headers.append((name, os.fsencode(value)))
    return headers


def parse_expiry(
    queue: Queue, time_to_live: str | None, expires_at: str | None
) -> dict[str, int | None]:
    """Parse --time-to-live and --expires-at. Returns the keywords of ``Queue.send``.

    Times are in ms. Raises InvalidOption for a text that is not accepted, or for both at once.
    """
    if time_to_live is not None and expires_at is not None:
        raise InvalidOption(
            "--time-to-live and --expires-at exclude each other. Accepted: one of them."
        )
    lives = TIME_TO_LIVE.called("--time-to-live")
    ends = replace(EXPIRES_AT, name="--expires-at", parser=moment_or_relative(queue.now_ms))
    return {
        "time_to_live": None if time_to_live is None else lives.parse(time_to_live),
        "expires_at": None if expires_at is None else ends.parse(expires_at),
    }


def messages_of(
    topic: TopicDefinition,
    contents: list[str] | None,
    key: str | None,
    delimiter: str | None,
    lines: Callable[[], Iterator[bytes]],
) -> Iterable[Any]:
    """Return the messages to send, as ``Queue.send`` takes them.

    contents: the arguments; None or empty for the lines of stdin, which ``lines`` reads. With a
    key, they are the only payload, and none means no payload. delimiter: the text that ends the key
    in each of them. Raises InvalidOption if key and delimiter do not suit the topic.
    """
    _check_keys(topic, contents, key, delimiter)
    if key is not None:
        return [Message(os.fsencode(contents[0]) if contents else None, key=os.fsencode(key))]
    texts = map(os.fsencode, contents) if contents else lines()
    if delimiter is None:
        return texts
    return _keyed(topic, texts, os.fsencode(delimiter))


def _check_keys(
    topic: TopicDefinition, contents: list[str] | None, key: str | None, delimiter: str | None
) -> None:
    given = [
        flag
        for flag, value in (("--key", key), ("--key-delimiter", delimiter))
        if value is not None
    ]
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
        raise InvalidOption("--key-delimiter='' is not accepted. Accepted: at least one character.")


def _keyed(topic: TopicDefinition, texts: Iterable[bytes], delimiter: bytes) -> Iterator[Message]:
    """Split texts into key and content. One without the delimiter is a key without a content."""
    for number, text in enumerate(texts, 1):
        key, found, content = text.partition(delimiter)
        if not 1 <= len(key) <= LONGEST_KEY_BYTES:
            raise InvalidMessage(
                f"Message {number} ({content_text(text)!r}): the key before --key-delimiter is "
                f"{len(key):,} bytes long. Accepted in the keyed topic {topic.name}: 1 to "
                f"{LONGEST_KEY_BYTES:,} bytes. The messages of earlier lines may have been sent."
            )
        yield Message(content if found else None, key=key)


def _is_text(text: str) -> bool:
    """Return whether the bytes that the shell passed were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
