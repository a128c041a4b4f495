"""The options of ``spark.readStream.format("rmq")``."""

import json
import re
from dataclasses import replace

from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.ensemble_options import ENSEMBLE
from rmq_spark.options.option import Option, OptionTable
from rmq_spark.options.topic_options import GROUP, SLOT_AMOUNT, TOPIC_NAME, TOPIC_TYPE
from rmq_spark.topics.definition import check_topic_name
from rmq_spark.topics.parsers import FLAG, HIGHEST_WHOLE, NotAccepted, Parser, duration, whole

# Spark itself puts these among the options of a source or sink.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
DEFAULT_MAX_RECORDS = 500_000
DEFAULT_VISIBILITY_TIMEOUT = "60s"
# The default without numPartitions. A task costs Spark some 20 ms besides reading, a small part of
# the time that so many messages take.
MESSAGES_A_TASK = 32_768
MOST_TASKS = 8
SHORTEST_LEASE_MS = 1_000


def _topic_names(text: str) -> tuple[str, ...]:
    names = (check_topic_name(name.strip()) for name in text.split(","))
    return tuple(dict.fromkeys(names))


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise NotAccepted(f"is not a regular expression ({error})") from None
    return text


def _limit(text: str) -> int | dict[str, int]:
    """Parse a limit for the batch (0: none), or one for each topic by name. Raises NotAccepted."""
    if not text.lstrip().startswith("{"):
        return whole(0).read(text)
    try:
        of_topic = json.loads(text)
    except ValueError:
        raise NotAccepted from None
    numbers = [number for number in of_topic.values() if type(number) is int and number > 0]
    if not of_topic or len(numbers) < len(of_topic):
        raise NotAccepted
    return {check_topic_name(name): number for name, number in of_topic.items()}


TOPIC = Option("topic", TOPIC_NAME, "Topic to read. It must exist")
TOPICS = Option(
    "topics",
    Parser(_topic_names, "names, separated by commas: `Orders,Mails`"),
    "Several topics to read",
)
TOPIC_PATTERN = Option(
    "topicPattern",
    Parser(_expression, "a regular expression of Python: `Orders[.].*`"),
    "Read all topics whose whole names match, including those created while the query runs",
)
MAX_RECORDS_PER_TRIGGER = Option(
    "maxRecordsPerTrigger",
    Parser(
        _limit,
        f"a whole number, `0` to `{HIGHEST_WHOLE}`, or numbers above 0 by topic as JSON: "
        '`{"Orders": 1000}`',
    ),
    "Maximum number of messages in a batch, in total or of each topic; 0 means no limit. A topic "
    "that the JSON does not name keeps the default",
    default=str(DEFAULT_MAX_RECORDS),
)
TARGET_BATCH_DURATION = Option(
    "targetBatchDuration",
    duration(1),
    "How long a batch should take; its size adapts. Choose more than the trigger's interval",
    otherwise="off",
)
NUM_PARTITIONS = Option(
    "numPartitions",
    whole(1),
    "Number of tasks in a batch, at most one a slot. By default, one for each "
    f"{MESSAGES_A_TASK} messages",
    otherwise=f"by size, up to {MOST_TASKS}",
)
VISIBILITY_TIMEOUT = Option(
    "visibilityTimeout",
    duration(SHORTEST_LEASE_MS),
    "How long messages stay claimed after their query dies. Renewed while the query runs",
    default=DEFAULT_VISIBILITY_TIMEOUT,
)
MAX_PROCESSING_TIME = Option(
    "maxProcessingTime",
    duration(1),
    "Stop renewing the claims of a batch that takes longer; others then get its messages",
    otherwise="no limit",
)
RELEASE_ON_STOP = Option(
    "releaseOnStop",
    FLAG,
    "Whether a query that stops or fails gives its last batch to others at once, even a finished "
    "one, whose messages then come a second time",
    default="false",
    see="consume.md#stop-and-start-again",
)
POLL_INTERVAL = Option(
    "pollInterval",
    duration(1),
    "How long to wait before asking Redis again when nothing is due, if it cannot wake the query",
    default="100ms",
)
INCLUDE_HEADERS = Option(
    "includeHeaders",
    FLAG,
    "Whether rows have the column `headers`",
    default="false",
)
SOURCE = OptionTable(
    "the rmq source",
    (
        *(TOPIC, TOPICS, TOPIC_PATTERN, GROUP),
        replace(TOPIC_TYPE, help="Fail if the topic has another type; the source makes no topic"),
        replace(SLOT_AMOUNT, help="Fail if the topic has another number of slots", otherwise=""),
        *(MAX_RECORDS_PER_TRIGGER, TARGET_BATCH_DURATION, NUM_PARTITIONS, VISIBILITY_TIMEOUT),
        *(MAX_PROCESSING_TIME, RELEASE_ON_STOP, POLL_INTERVAL, INCLUDE_HEADERS),
        *(*CONNECTION.options, *ENSEMBLE.options),
    ),
    passed_over=SPARKS_OWN,
)
