"""The options of a queue read as a table."""

import re
from dataclasses import replace

from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.option import Option, OptionTable
from rmq_spark.options.source_options import NUM_PARTITIONS, SPARKS_OWN
from rmq_spark.options.topic_options import GROUP, TOPIC_NAME
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import MOST_SLOTS
from rmq_spark.topics.parsers import MOMENT, NotAccepted, Parser

_SLOTS = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")


def _queues(text: str) -> tuple[QueueKind, ...]:
    """Parse the names of queues. Raises NotAccepted."""
    names = [name.strip().lower() for name in text.split(",")]
    if names == ["all"]:
        return tuple(QueueKind)
    if not set(names) <= set(QueueKind):
        raise NotAccepted
    return tuple(kind for kind in QueueKind if kind in names)


def _slots(text: str) -> frozenset[int]:
    """Parse numbers and ranges of slots. Raises NotAccepted."""
    found: set[int] = set()
    for part in text.split(","):
        match = _SLOTS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= MOST_SLOTS:
            raise NotAccepted
        found.update(range(first, last + 1))
    return frozenset(found)


TOPIC = Option("topic", TOPIC_NAME, "Topic to show. It must exist")
QUEUE = Option(
    "queue",
    Parser(
        _queues,
        f"{', '.join(f'`{kind}`' for kind in QueueKind)}, several separated by commas, or `all`",
    ),
    "The queues",
    otherwise="required",
)
SLOTS = Option(
    "slots",
    Parser(_slots, f"`0` to `{MOST_SLOTS - 1}` and ranges, separated by commas: `0,8-15`"),
    "Only these slots",
    otherwise="all",
)
STARTING_TIME = Option(
    "startingTime", MOMENT, "Only messages due, claimed or dead from this moment on"
)
ENDING_TIME = Option("endingTime", MOMENT, "Only messages due, claimed or dead before this moment")
TABLE = OptionTable(
    "a queue as a table",
    (
        *(TOPIC, QUEUE, GROUP, SLOTS, STARTING_TIME, ENDING_TIME),
        replace(NUM_PARTITIONS, help="Number of tasks"),
        *CONNECTION.options,
    ),
    passed_over=SPARKS_OWN,
)
