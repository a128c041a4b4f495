"""The messages that a command line chooses: by key or content, or by queue, slot and time."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

import typer

from rmq_spark.cli.output import print_remark, print_result
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.exit_codes import NOTHING_FOUND
from rmq_spark.options.option import Option
from rmq_spark.options.table_options import ENDING_TIME, QUEUE, SLOTS, STARTING_TIME
from rmq_spark.protocol.pages import Bounds, Page
from rmq_spark.spark.table.selection import Scope
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsers import moment_or_relative
from rmq_spark.views.shown_texts import messages_text

Every = Annotated[
    bool, typer.Option("--all", help="All messages that --slots, --from and --until select.")
]


def times_of(queue: Queue, since: str | None, until: str | None) -> Bounds:
    """Parse --from and --until; None means no bound. Returns their times in ms since 1970.

    Raises InvalidOption for a text that is not a time.
    """
    return Bounds(
        _moment(queue, STARTING_TIME.called("--from"), since),
        _moment(queue, ENDING_TIME.called("--until"), until),
    )


def pages_of(queue: Queue, queues: str, slots: str | None, times: Bounds) -> Iterator[Page]:
    """Return an iterator over the messages of these queues, slots and times, page by page.

    queues, slots: the texts of --queue and --slots. Raises InvalidOption for a text that is not
    accepted or a slot that does not exist: at once, not when the first page is read.
    """
    chosen = None if slots is None else SLOTS.called("--slots").parse(slots)
    scope = Scope(QUEUE.called("--queue").parse(queues), chosen, times)
    scope.slots_of(queue.definition)
    return _pages(queue, scope)


def _pages(queue: Queue, scope: Scope) -> Iterator[Page]:
    for kind in scope.queues:
        scores = scope.scores_of(kind, queue.definition)
        if scores is not None:
            for slot in scope.slots_of(queue.definition):
                yield from queue.pages(kind, slot, scores)


def are_named(contents: list[str] | None, every: bool) -> bool:
    """Return whether contents or keys, instead of --all, choose the messages.

    Raises InvalidOption if the user gave both or neither.
    """
    if bool(contents) == every:
        found = "Contents and --all exclude each other" if every else "No message is named"
        raise InvalidOption(
            f"{found}. Accepted: contents of messages (in a keyed topic, their keys), or --all."
        )
    return bool(contents)


def encoded(contents: Iterable[str] | None) -> list[bytes]:
    """Encode contents or keys as the bytes that the shell passed, which need not be text."""
    return [os.fsencode(content) for content in contents or ()]


def encoded_basis(slot_basis: str | None) -> bytes | None:
    """Encode a slot basis as the bytes that the shell passed, or return None."""
    return None if slot_basis is None else os.fsencode(slot_basis)


def remark_on_keys(topic: TopicDefinition) -> None:
    """Print, for a keyed topic, by what commands name its messages."""
    if topic.keyed:
        print_remark(f"Topic {topic.name} is keyed: name its messages by their keys.")


def print_count(as_json: bool, topic: str, how_many: int, done: str) -> None:
    """Print how many messages a command changed, and exit with NOTHING_FOUND if it is 0.

    done: what happened to the messages, such as "deleted".
    """
    print_result(
        as_json, f"{topic}: {messages_text(how_many)} {done}", topic=topic, messages=how_many
    )
    if not how_many:
        raise typer.Exit(NOTHING_FOUND)


def _moment(queue: Queue, option: Option[int], text: str | None) -> int | None:
    parser = moment_or_relative(queue.now_ms)
    return None if text is None else replace(option, parser=parser).parse(text)
