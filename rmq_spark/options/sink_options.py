"""The options of ``df.write.format("rmq")`` and ``df.writeStream.format("rmq")``."""

from dataclasses import replace

from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.option import Option, OptionTable
from rmq_spark.options.source_options import SPARKS_OWN
from rmq_spark.options.topic_options import (
    DEAD_RETENTION,
    EXPIRES_AT,
    GROUP_NAME,
    GROUPS,
    KEYED,
    MAX_RETRIES,
    ON_EXPIRY,
    PAYLOAD,
    RETRY_BACKOFF,
    SLOT_AMOUNT,
    TIME_TO_LIVE,
    TOPIC_NAME,
    TOPIC_TYPE,
    VALUES,
)
from rmq_spark.topics.durations import LONGEST_DURATION_MS, duration_text
from rmq_spark.topics.parsers import Parser, choice

AT_LEAST_ONCE, EXACTLY_ONCE = "atLeastOnce", "exactlyOnce"

TOPIC = Option("topic", TOPIC_NAME, "Topic to send to, unless the rows have a column `topic`")
SLOT_BASIS = Option(
    "slotBasis",
    Parser(str.encode, "text"),
    "The text that decides the slot, instead of the content",
    otherwise="the content",
)
OPERATION = Option(
    "operation",
    choice("send", "cancel", "requeue", "rollback", "purge"),
    "What to do with the rows: [columns](#columns-of-the-sink)",
    default="send",
)
# The delay of a message, which is an option of two operations with bounds of their own.
DELAY = replace(
    VALUES["delay"],
    help=f"{VALUES['delay'].help}. With `rollback`: the wait before the retry, at most "
    f"`{duration_text(LONGEST_DURATION_MS)}`",
    otherwise="with `rollback`: the topic's backoff",
)
GROUP = Option(
    "group",
    GROUP_NAME,
    "With `cancel`, `requeue` and `purge` only: the consumer group whose copies are meant. "
    "`requeue` takes the default group, else the first; `purge` needs it where there are several",
    otherwise="all groups",
)
DELIVERY_GUARANTEE = Option(
    "deliveryGuarantee",
    choice(AT_LEAST_ONCE, EXACTLY_ONCE),
    f"`{EXACTLY_ONCE}` works with `df.writeStream` and `send` only",
    default=AT_LEAST_ONCE,
)
PAST_FIXED_TIME = Option(
    "pastFixedTime",
    choice("send", "fail"),
    "What to do with a message whose `fixedTime` is not in the future",
    default="send",
)
SINK = OptionTable(
    "the rmq sink",
    (
        *(TOPIC, TOPIC_TYPE, SLOT_AMOUNT, SLOT_BASIS, *(VALUES | {"delay": DELAY}).values()),
        *(TIME_TO_LIVE, EXPIRES_AT, OPERATION),
        *(MAX_RETRIES, RETRY_BACKOFF, GROUPS, KEYED, PAYLOAD, ON_EXPIRY, DEAD_RETENTION, GROUP),
        *(DELIVERY_GUARANTEE, PAST_FIXED_TIME, *CONNECTION.options),
    ),
    passed_over=SPARKS_OWN,
)
