"""Every option of the source and the sink: its name, default, unit and check. Parsed once."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.ownership.ensemble import (
    DEFAULT_ROOT,
    ENSEMBLE_OPTIONS,
    EnsembleOptions,
    parse_ensemble,
)
from rmq_spark.spark.batch_limits import Limits
from rmq_spark.spark.option_values import CONNECTION, Given, Option
from rmq_spark.spark.subscription import Subscription
from rmq_spark.topics.definition import (
    DEFAULT_GROUP_TEXT,
    DEFAULT_SLOT_AMOUNT,
    check_topic_name,
    parse_group,
    parse_groups,
    parse_retry_backoff,
)
from rmq_spark.topics.scores import MOST_RETRIES
from rmq_spark.topics.topic_types import TOPIC_TYPES, TopicType
from rmq_spark.transport.connection import ConnectionOptions

DEFAULT_MAX_RECORDS = 500_000
DEFAULT_MOST_PARTITIONS = 8
SHORTEST_LEASE_MS = 1_000
ZOOKEEPER = "zookeeper."
GUARANTEES = ("atLeastOnce", "exactlyOnce")
WRITE_OPERATIONS = ("send", "cancel", "requeue", "rollback", "purge")

_TOPIC = (
    Option("topicType", "", f"{', '.join(TOPIC_TYPES)}; defines a new topic"),
    Option("slotAmount", str(DEFAULT_SLOT_AMOUNT), "slots of a new topic: a power of two to 65536"),
)
_ENSEMBLE = (
    Option("zookeeper.hosts", "", "host:port by commas: slots are shared with other queries"),
    Option("zookeeper.root", DEFAULT_ROOT, "the path below which our nodes lie"),
    Option("zookeeper.sessionTimeout", "10s", "after so long unheard of, slots go to others"),
    Option("zookeeper.username", "", "user (digest); what it makes is for it alone"),
    Option("zookeeper.password", "", "password"),
    Option("zookeeper.ssl", "false", "TLS, with the host's name checked"),
    *(
        Option(f"{ZOOKEEPER}{name}", "", "passed to the client")
        for name in ENSEMBLE_OPTIONS
        if name.startswith("ssl") and name != "ssl"
    ),
)
SINK_OPTIONS = (
    Option("topic", "", "the topic to send to, unless a column names it"),
    *_TOPIC,
    Option("slotBasis", "the content", "the slotBasis of all rows that have none"),
    Option("timeRange", "", "ms, or a duration: the timeRange of all rows that have none"),
    Option("priority", "", "the priority of all rows that have none"),
    Option("fixedTime", "", "ms since 1970 or ISO 8601 with a zone, for all rows that have none"),
    Option("operation", "send", "send, cancel, requeue, rollback or purge"),
    Option("delay", "the topic's backoff", "the wait after a rollback, of rows that have none"),
    Option("maxRetries", "16", "of a new topic: deliveries after the first, 0 to 16"),
    Option("retryBackoff", "none", "of a new topic: none, rocketmq, or durations by commas"),
    Option("groups", "default", "of a new topic: consumer groups by commas, a copy for each"),
    Option(
        "group", "all groups", "whose copies cancel recalls, requeue brings back, purge deletes"
    ),
    Option("deliveryGuarantee", "atLeastOnce", "atLeastOnce or, in df.writeStream, exactlyOnce"),
    Option("pastFixedTime", "send", "send or fail: what happens to a fixedTime not after now"),
    *CONNECTION,
)
SOURCE_OPTIONS = (
    Option("topic", "", "the topic to read; it must exist"),
    Option("topics", "", "several topics, by commas, instead of one"),
    Option("topicPattern", "", "all topics whose whole names match this regular expression"),
    Option("group", "the default group", "the consumer group to read in"),
    *_TOPIC,
    Option(
        "maxRecordsPerTrigger",
        str(DEFAULT_MAX_RECORDS),
        'messages in a batch, 0: no limit; or of each topic, {"Orders": 1000}',
    ),
    Option("targetBatchDuration", "off", "how long a batch should last; it takes as much as fits"),
    Option("numPartitions", f"by size, up to {DEFAULT_MOST_PARTITIONS}", "tasks of a batch"),
    Option("visibilityTimeout", "60s", "how long a claim outlives its query, from 1s"),
    Option("maxProcessingTime", "no limit", "after this a batch in work is let go"),
    Option("releaseOnStop", "false", "true: query.stop() gives its batch back, even if finished"),
    Option("pollInterval", "100ms", "while nothing is due, Redis is not asked more often"),
    *CONNECTION,
    *_ENSEMBLE,
)
LISTENER_OPTIONS = (
    Option("timeout", "no limit", "for a message of each_message, or for a call with a batch"),
    Option("delay", "the topic's backoff", "the wait before a message that failed comes again"),
    Option("logContents", "true", "false: the log of what failed shows no contents"),
    *CONNECTION,
)


@dataclass(frozen=True)
class SourceOptions:
    """What a streaming read was asked for."""

    connection: ConnectionOptions
    key_prefix: str
    subscription: Subscription
    topic_type: TopicType | None
    slot_amount: int | None
    limits: Limits
    target_batch_ms: int | None
    num_partitions: int | None
    lease_ms: int
    max_processing_ms: int | None
    poll_interval_ms: int
    release_on_stop: bool = False
    ensemble: EnsembleOptions | None = None

    @property
    def patience_s(self) -> float:
        """How long a broken connection is tried again: shorter than the lease."""
        return min(self.connection.patience_s, self.lease_ms / 2000)


@dataclass(frozen=True)
class SinkOptions:
    """What a write was asked for. Values for rows that have none themselves may be None."""

    connection: ConnectionOptions
    key_prefix: str
    topic: str | None
    topic_type: TopicType | None
    slot_amount: int | None
    slot_basis: bytes | None
    time_range: int | None
    priority: int | None
    fixed_time: int | None
    fail_past: bool
    operation: str
    delay_ms: int | None
    max_retries: int | None
    retry_backoff: str | None
    groups: tuple[str, ...] | None
    group: str | None
    exactly_once: bool

    @property
    def settings(self) -> dict[str, Any]:
        """What a topic gets that this write makes."""
        given = {
            "max_retries": self.max_retries,
            "retry_backoff": self.retry_backoff,
            "groups": self.groups,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ListenerOptions:
    """What each_message was asked for."""

    connection: ConnectionOptions
    key_prefix: str
    timeout_ms: int | None
    delay_ms: int | None
    log_contents: bool


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Checks the options of a read. Raises InvalidOption."""
    options = Given(given, SOURCE_OPTIONS, "reading")
    if "queue" in options:
        raise InvalidOption(
            "spark.readStream takes no option queue: it consumes the messages that are due. Leave "
            'queue out, or look at a queue as a table: spark.read.format("rmq").'
        )
    options.refuse_unknown()
    lease_ms = options.duration("visibilityTimeout", 60_000)
    if lease_ms < SHORTEST_LEASE_MS:
        raise InvalidOption(
            f"visibilityTimeout={options.get('visibilityTimeout')!r} is too short. "
            "Accepted: from 1s."
        )
    max_processing = options.get("maxProcessingTime")
    partitions = options.get("numPartitions")
    subscription = _subscription(options)
    return SourceOptions(
        connection=options.connection(),
        key_prefix=options.key_prefix(),
        subscription=subscription,
        topic_type=options.topic_type(),
        slot_amount=options.slot_amount(),
        limits=_limits(options, subscription),
        target_batch_ms=(
            None
            if options.get("targetBatchDuration") is None
            else options.positive_duration("targetBatchDuration", 1)
        ),
        num_partitions=None if partitions is None else options.whole("numPartitions", 1, 1),
        lease_ms=lease_ms,
        max_processing_ms=(
            None if max_processing is None else options.positive_duration("maxProcessingTime", 1)
        ),
        poll_interval_ms=options.positive_duration("pollInterval", 100),
        release_on_stop=options.one_of("releaseOnStop", ("false", "true")) == "true",
        ensemble=parse_ensemble(options.behind(ZOOKEEPER)),
    )


def _subscription(options: Given) -> Subscription:
    given = [name for name in ("topic", "topics", "topicPattern") if name in options]
    if len(given) != 1:
        found = f"The options {' and '.join(given)} exclude each other"
        raise InvalidOption(
            f"{found if given else 'The option topic is missing'}. Accepted: one of topic, for one "
            "topic, topics, for several by commas, and topicPattern, for a regular expression."
        )
    group = parse_group(options.get("group") or DEFAULT_GROUP_TEXT)
    pattern = options.get("topicPattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOption(
                f"topicPattern={pattern!r} is no regular expression ({error}). Accepted: one of "
                "Python's, which the whole name of a topic must match, such as 'Orders[.].*'."
            ) from None
        return Subscription(pattern=pattern, group=group, owns="zookeeper.hosts" in options)
    text = options.get(given[0]) or ""
    names = [text] if given == ["topic"] else [name.strip() for name in text.split(",")]
    return Subscription(names=tuple(dict.fromkeys(map(check_topic_name, names))), group=group)


def _limits(options: Given, subscription: Subscription) -> Limits:
    """Reads maxRecordsPerTrigger: a number for the batch, or one for each topic as JSON."""
    text = (options.get("maxRecordsPerTrigger") or "").strip()
    if not text.startswith("{"):
        total = options.whole("maxRecordsPerTrigger", 0, DEFAULT_MAX_RECORDS)
        return Limits(total=total or None)
    try:
        of_topic = json.loads(text)
    except ValueError:
        of_topic = {}
    numbers = [number for number in of_topic.values() if type(number) is int and number > 0]
    if not of_topic or len(numbers) < len(of_topic):
        raise InvalidOption(
            f"maxRecordsPerTrigger={text!r} is not accepted. Accepted: a whole number, or for each "
            'topic one above 0 as JSON, such as {"Orders": 1000, "Mails": 50}; a topic that is not '
            f"named there has {DEFAULT_MAX_RECORDS}."
        )
    strangers = [name for name in of_topic if name not in (subscription.names or of_topic)]
    if strangers:
        raise InvalidOption(
            f"maxRecordsPerTrigger names {', '.join(strangers)}, which this query does not read. "
            f"Accepted: {', '.join(subscription.names)}."
        )
    of_topic = {check_topic_name(name): number for name, number in of_topic.items()}
    return Limits(of_topic=of_topic, of_others=DEFAULT_MAX_RECORDS)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Checks the options of a write. Raises InvalidOption."""
    options = Given(given, SINK_OPTIONS, "writing")
    options.refuse_unknown()
    topic = options.get("topic")
    basis = options.get("slotBasis")
    backoff = options.get("retryBackoff")
    if backoff is not None:
        parse_retry_backoff(backoff)
    operation = options.one_of("operation", WRITE_OPERATIONS)
    exactly_once = options.one_of("deliveryGuarantee", GUARANTEES) == "exactlyOnce"
    if exactly_once and operation != "send":
        raise InvalidOption(
            f"deliveryGuarantee=exactlyOnce is not accepted with operation={operation}. Accepted: "
            "operation=send; the others change what is there, and may be done again."
        )
    groups, group = options.get("groups"), options.get("group")
    if group is not None and operation not in ("cancel", "requeue", "purge"):
        raise InvalidOption(
            f"group={group!r} is not accepted with operation={operation}. Accepted: with cancel, "
            "requeue and purge; what is sent goes to all consumer groups of its topic, and a "
            "claimId tells the group of a rollback."
        )
    return SinkOptions(
        connection=options.connection(),
        key_prefix=options.key_prefix(),
        topic=None if topic is None else check_topic_name(topic),
        topic_type=options.topic_type(),
        slot_amount=options.slot_amount(),
        slot_basis=None if basis is None else basis.encode(),
        time_range=options.value_of(TopicType.RANGE_MERGE),
        priority=options.value_of(TopicType.PRIORITY),
        fixed_time=options.value_of(TopicType.FIXED_TIME),
        fail_past=options.one_of("pastFixedTime", ("send", "fail")) == "fail",
        operation=operation,
        delay_ms=None if options.get("delay") is None else options.duration("delay", 0),
        max_retries=options.optional_whole("maxRetries", 0, MOST_RETRIES),
        retry_backoff=backoff,
        groups=None if groups is None else parse_groups(groups),
        group=None if group is None else parse_group(group),
        exactly_once=exactly_once,
    )


def parse_listener_options(given: Mapping[str, str]) -> ListenerOptions:
    """Checks the options of each_message. Raises InvalidOption."""
    options = Given(given, LISTENER_OPTIONS, "each_message of")
    options.refuse_unknown()
    timeout, delay = options.get("timeout"), options.get("delay")
    return ListenerOptions(
        connection=options.connection(),
        key_prefix=options.key_prefix(),
        timeout_ms=None if timeout is None else options.positive_duration("timeout", 1),
        delay_ms=None if delay is None else options.duration("delay", 0),
        log_contents=options.one_of("logContents", ("true", "false")) == "true",
    )
