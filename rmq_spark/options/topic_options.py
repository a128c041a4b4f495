"""The options that name topics, define new ones, and give messages their values."""

from rmq_spark.options.option import Option
from rmq_spark.topics.definition import (
    ACCEPTED_RETENTION,
    BURY,
    DEFAULT_GROUP_TEXT,
    DEFAULT_SLOT_AMOUNT,
    DROP,
    KEEP_FIRST,
    KEEP_LAST,
    MOST_SLOTS,
    check_slot_amount,
    check_topic_name,
    parse_dead_retention,
    parse_group,
    parse_groups,
    parse_retry_backoff,
)
from rmq_spark.topics.message_value import LONGEST_WAIT_MS
from rmq_spark.topics.parsers import (
    FLAG,
    MOMENT,
    Parser,
    checked_text,
    choice,
    duration_or_whole,
    whole,
)
from rmq_spark.topics.scores import MOST_RETRIES
from rmq_spark.topics.topic_types import TOPIC_TYPES, parse_topic_type

TOPIC_NAME = checked_text(check_topic_name, "1 to 200 of A-Z a-z 0-9 . _ -")
GROUP_NAME = Parser(parse_group, f"a name like a topic's, or `{DEFAULT_GROUP_TEXT}`")

GROUP = Option("group", GROUP_NAME, "The consumer group", default=DEFAULT_GROUP_TEXT)

# Options of a topic that a write creates. Their defaults are those of TopicDefinition.
TOPIC_TYPE = Option(
    "topicType",
    Parser(parse_topic_type, ", ".join(f"`{one}`" for one in TOPIC_TYPES)),
    "The type of a new topic",
)
SLOT_AMOUNT = Option(
    "slotAmount",
    Parser(check_slot_amount, f"a power of two, `1` to `{MOST_SLOTS}`"),
    "The number of slots of a new topic, fixed forever",
    otherwise=f"`{DEFAULT_SLOT_AMOUNT}`",
)
MAX_RETRIES = Option(
    "maxRetries",
    whole(0, MOST_RETRIES),
    "Deliveries after the first",
    otherwise=f"`{MOST_RETRIES}`",
)
RETRY_BACKOFF = Option(
    "retryBackoff",
    checked_text(
        parse_retry_backoff,
        f"`none`, `rocketmq`, or up to {MOST_RETRIES} durations: `10s, 30s, 1m`",
    ),
    "Waits before the first, second, ... retry; the last one repeats",
    otherwise="`none`",
)
GROUPS = Option(
    "groups",
    Parser(parse_groups, "names, separated by commas: `billing,audit`"),
    "Consumer groups; each gets a copy of every message",
    otherwise=f"`{DEFAULT_GROUP_TEXT}`",
)
KEYED = Option(
    "keyed",
    FLAG,
    "Whether messages of a new topic merge by a column `key`, and content is their payload",
    otherwise="`false`",
)
PAYLOAD = Option(
    "payload",
    choice(KEEP_LAST, KEEP_FIRST),
    "Which content a message of a new keyed topic keeps when its key is sent again",
    otherwise=f"`{KEEP_LAST}`",
)
ON_EXPIRY = Option(
    "onExpiry",
    choice(DROP, BURY),
    "What happens to messages of a new topic that expire: dropped, or moved to the dead queue",
    otherwise=f"`{DROP}`",
)
DEAD_RETENTION = Option(
    "deadRetention",
    Parser(parse_dead_retention, ACCEPTED_RETENTION),
    "How long dead messages of a new topic are kept; `rmq expire` deletes older ones",
    otherwise="`none`",
)
OF_A_NEW_TOPIC = (
    *(TOPIC_TYPE, SLOT_AMOUNT, MAX_RETRIES, RETRY_BACKOFF, GROUPS),
    *(KEYED, PAYLOAD, ON_EXPIRY, DEAD_RETENTION),
)
TIME_TO_LIVE = Option(
    "timeToLive",
    duration_or_whole(1, LONGEST_WAIT_MS),
    "How long after it is due a message expires",
)
EXPIRES_AT = Option("expiresAt", MOMENT, "When a message expires")

# Keyword of a message's value -> the option with its default for messages without one.
VALUES = {
    of.keyword: Option(of.value_name, of.parser, f"For a {of_type.name} topic: {of.meaning}")
    for of_type in TOPIC_TYPES.values()
    for of in of_type.values
}
