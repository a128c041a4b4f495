"""What a command line gives: the options that commands share, values and choices of messages."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, TypeVar

import typer

from rmq_spark.cli.output import print_remark, print_result
from rmq_spark.client.messages import Message, contents_by_slot
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.inspect.browse import pages_from
from rmq_spark.inspect.fields import messages_text, without_none
from rmq_spark.options import (
    ENDING_TIME,
    EXPIRES_AT,
    GROUP,
    QUEUE,
    SLOT_BASIS,
    SLOTS,
    STARTING_TIME,
    TIME_TO_LIVE,
    VALUES,
    typed_value,
)
from rmq_spark.process import NOTHING_FOUND
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, Page, Scope
from rmq_spark.protocol.reading import ENTRIES_A_PAGE
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsing import ACCEPTED_RELATIVE, Option, moment_or_relative
from rmq_spark.topics.reasons import class_of
from rmq_spark.topics.types import TOPIC_TYPES, MessageValue, TopicType

_T = TypeVar("_T")
_MOST_CLASSES = 10


def option_help(option: Option[Any], accepted: str = "") -> str:
    """Return the purpose of an option, and what it accepts, or the command if that accepts more."""
    return f"{option.plain_help}. Accepted: {accepted or option.parser.accepted_plain}."


Topic = Annotated[
    str, typer.Argument(help="The name of a topic: see `rmq topics`.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Group = Annotated[str, typer.Option(help=f"{GROUP.plain_help}.")]
Queues = Annotated[str, typer.Option("--queue", help=option_help(QUEUE))]
Slots = Annotated[str | None, typer.Option(help=option_help(SLOTS))]
Every = Annotated[
    bool,
    typer.Option("--all", help="All messages that --slots, --from, --until and --reason select."),
]
From = Annotated[
    str | None, typer.Option("--from", help=option_help(STARTING_TIME, ACCEPTED_RELATIVE))
]
Until = Annotated[str | None, typer.Option("--until", help=f"{ENDING_TIME.plain_help}.")]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", help="Only dead messages whose reason is of this class, such as ValueError."
    ),
]
Contents = Annotated[
    list[str] | None, typer.Argument(help="Contents of messages.", show_default=False)
]
NAMES_HELP = "Contents of messages; in a keyed topic, their keys."
Names = Annotated[list[str] | None, typer.Argument(help=NAMES_HELP, show_default=False)]
SlotBasis = Annotated[str | None, typer.Option(help=f"{SLOT_BASIS.plain_help}.")]
TimeRange = Annotated[str | None, typer.Option(help=option_help(VALUES["time_range"]))]
Priority = Annotated[int | None, typer.Option(help=option_help(VALUES["priority"]))]
FixedTime = Annotated[
    str | None, typer.Option(help=option_help(VALUES["fixed_time"], ACCEPTED_RELATIVE))
]
Delay = Annotated[str | None, typer.Option(help=option_help(VALUES["delay"]))]
TimeToLive = Annotated[str | None, typer.Option(help=option_help(TIME_TO_LIVE))]
ExpiresAt = Annotated[str | None, typer.Option(help=option_help(EXPIRES_AT, ACCEPTED_RELATIVE))]


def given_values(
    time_range: str | None, priority: int | None, fixed_time: str | None, delay: str | None
) -> dict[MessageValue, str]:
    given = without_none(
        {"time_range": time_range, "priority": priority, "fixed_time": fixed_time, "delay": delay}
    )
    found: dict[MessageValue, str] = {}
    for of_type in TOPIC_TYPES.values():
        values = [of for of in of_type.values if of.keyword in given]
        refuse_both(*map(_flag, values))
        found |= {of: str(given[of.keyword]) for of in values}
    return found


def types_of(given: Iterable[MessageValue]) -> list[TopicType]:
    wanted = set(given)
    return [of_type for of_type in TOPIC_TYPES.values() if not wanted.isdisjoint(of_type.values)]


def parse_values(
    queue: Queue, given: dict[MessageValue, str], done: str, *, needed: bool = True
) -> dict[str, int]:
    """Parse the values of ``given_values``. Returns numbers by keyword of ``Queue.send``.

    Times are in ms. done: for errors, such as "sent". needed: whether the value that the topic's
    type needs must be given.
    """
    topic, of_type = queue.definition, queue.definition.type
    flags = " or ".join(map(_flag, of_type.values))
    others = [_flag(of) for of in given if of not in of_type.values]
    if others:
        raise InvalidOption(
            f"{', '.join(others)} is not for topic {topic.name}, which is {of_type}. Accepted: "
            f"{flags}. Nothing was {done}."
        )
    values = {
        of.keyword: typed_value(of, queue.now_ms).called(_flag(of)).parse(text)
        for of, text in given.items()
    }
    message = Message(b"", **values)  # type: ignore[arg-type]
    if needed and all(of.value_in(message) is None for of in of_type.values):
        accepted = ACCEPTED_RELATIVE if of_type.can_be_past else of_type.parser.accepted_plain
        raise InvalidMessage(
            f"Topic {topic.name} is {of_type}. Add {flags}. Accepted: {accepted}. Nothing was "
            f"{done}."
        )
    return values


def refuse_both(*flags: str) -> None:
    if len(flags) > 1:
        raise InvalidOption(f"{' and '.join(flags)} exclude each other. Accepted: one of them.")


def _flag(of: MessageValue) -> str:
    return f"--{of.keyword.replace('_', '-')}"


def times_of(queue: Queue, since: str | None, until: str | None) -> Bounds:
    return Bounds(
        moment(queue, STARTING_TIME.called("--from"), since),
        moment(queue, ENDING_TIME.called("--until"), until),
    )


def pages_of(
    queue: Queue, queues: str, slots: str | None, times: Bounds, reason: str | None = None
) -> Iterator[Page]:
    """Return the messages page by page. Refuses bad texts at once, not at the first page.

    reason: a class of reasons, which only dead messages have.
    """
    chosen = parsed(SLOTS.called("--slots"), slots)
    scope = Scope(QUEUE.called("--queue").parse(queues), chosen, times)
    asked = scope.slots_of(queue.definition)
    bounds = ((kind, scope.scores_of(kind, queue.definition)) for kind in scope.queues)
    found = ((kind, scores) for kind, scores in bounds if scores is not None)
    pages = chain.from_iterable(
        pages_from(queue, kind, None, scores, slots=asked, size=ENTRIES_A_PAGE)
        for kind, scores in found
    )
    return pages if reason is None else _of_reason(pages, reason)


def _of_reason(pages: Iterable[Page], reason: str) -> Iterator[Page]:
    """Yield the messages whose reason is of a class. If none is, print some that are."""
    classes: set[str] = set()
    for page in pages:
        classes.update(class_of(one or "") for one in page.reasons())
        yield page.of_reason(reason)
    if classes and reason not in classes:
        some = ", ".join(sorted(classes)[:_MOST_CLASSES])
        print_remark(f"No reason is of the class {reason}. There are reasons of: {some}.")


def named_by_slot(
    queue: Queue,
    contents: list[str] | None,
    every: bool,
    slots: str | None,
    times: Bounds,
    reason: str | None,
    slot_basis: str | None,
) -> dict[int, list[bytes]] | None:
    """Return the contents or keys that choose messages, by slot; None if --all chooses them."""
    if bool(contents) == every:
        found = "Contents and --all exclude each other" if every else "No message is named"
        raise InvalidOption(
            f"{found}. Accepted: contents of messages (in a keyed topic, their keys), or --all."
        )
    if every and slot_basis is not None:
        raise InvalidOption("--slot-basis needs contents. Accepted with --all: --slots.")
    if every:
        return None
    if times != UNBOUNDED or reason is not None:
        raise InvalidOption(
            "--from, --until and --reason need --all. Accepted with contents: --slot-basis, or "
            "--slots."
        )
    if slots is None:
        return contents_by_slot(encoded(contents), encoded_basis(slot_basis), queue.definition)
    if slot_basis is not None:
        refuse_both("--slot-basis", "--slots")
    chosen = Scope((), parsed(SLOTS.called("--slots"), slots)).slots_of(queue.definition)
    return {slot: encoded(contents) for slot in chosen}


def encoded(contents: Iterable[str] | None) -> list[bytes]:
    """Encode contents or keys as the bytes that the shell passed, which need not be text."""
    return [os.fsencode(content) for content in contents or ()]


def encoded_basis(slot_basis: str | None) -> bytes | None:
    return None if slot_basis is None else os.fsencode(slot_basis)


def remark_on_keys(topic: TopicDefinition) -> None:
    if topic.keyed:
        print_remark(f"Topic {topic.name} is keyed: these were taken for keys of messages.")


def print_count(as_json: bool, topic: str, how_many: int, done: str, **more: Any) -> None:
    """Print how many messages were ``done``, such as "deleted". Exit with NOTHING_FOUND if none."""
    text = f"{topic}: {messages_text(how_many)} {done}"
    print_result(as_json, text, topic=topic, messages=how_many, **more)
    if not how_many:
        raise typer.Exit(NOTHING_FOUND)


def moment(queue: Queue, option: Option[int], text: str | None) -> int | None:
    return parsed(replace(option, parser=moment_or_relative(queue.now_ms)), text)


def parsed(option: Option[_T], text: str | None) -> _T | None:
    return None if text is None else option.parse(text)
