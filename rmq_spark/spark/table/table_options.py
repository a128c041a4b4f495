"""The options of queues that are read as tables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.pages import Bounds, parse_queues
from rmq_spark.spark.option_values import CONNECTION, Given, Option
from rmq_spark.spark.table.selection import Scope
from rmq_spark.topics.definition import (
    DEFAULT_GROUP_TEXT,
    MOST_SLOTS,
    check_topic_name,
    parse_group,
)
from rmq_spark.transport.connection import ConnectionOptions

TABLE_OPTIONS = (
    Option("topic", "", "the topic to look at; it must exist"),
    Option("queue", "", "store, prepare, retry, dead, several of them by commas, or all"),
    Option("group", "the default group", "the consumer group whose queues they are"),
    Option("slots", "all", "numbers and ranges by commas: 0,8-15"),
    Option("startingTime", "", "due, claimed or dead from then on: ms since 1970 or ISO 8601"),
    Option("endingTime", "", "and before then"),
    Option("numPartitions", "by size, up to 8", "tasks of the read"),
    *CONNECTION,
)
_SLOTS = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")


@dataclass(frozen=True)
class TableOptions:
    """What a table was asked for."""

    connection: ConnectionOptions
    key_prefix: str
    topic: str
    group: str
    scope: Scope
    num_partitions: int | None


def is_table(given: Mapping[str, str]) -> bool:
    """Whether these are the options of a table."""
    return any(name.lower() == "queue" for name in given)


def parse_table_options(given: Mapping[str, str]) -> TableOptions:
    """Checks the options of a table. Raises InvalidOption."""
    options = Given(given, TABLE_OPTIONS, "reading a queue as a table of")
    options.refuse_unknown()
    if "topic" not in options:
        raise InvalidOption("The option topic is missing. Accepted: the name of a topic.")
    slots = options.get("slots")
    scope = Scope(
        queues=parse_queues(options.get("queue") or ""),
        slots=None if slots is None else parse_slots(slots),
        times=Bounds(options.moment("startingTime"), options.moment("endingTime")),
    )
    return TableOptions(
        connection=options.connection(),
        key_prefix=options.key_prefix(),
        topic=check_topic_name(options.get("topic") or ""),
        group=parse_group(options.get("group") or DEFAULT_GROUP_TEXT),
        scope=scope,
        num_partitions=options.optional_whole("numPartitions", 1, 2**31 - 1),
    )


def parse_slots(text: str) -> frozenset[int]:
    """Slots written as numbers and ranges. Raises InvalidOption."""
    found: set[int] = set()
    for part in text.split(","):
        match = _SLOTS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= MOST_SLOTS:
            raise InvalidOption(
                f"slots={text!r} is not accepted. Accepted: numbers and ranges by commas, such as "
                f"0,8-15; the highest slot there can be is {MOST_SLOTS - 1}."
            )
        found.update(range(first, last + 1))
    return frozenset(found)
