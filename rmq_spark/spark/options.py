"""Typed values of the options of a read, a write or each_message."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq_spark import options as declared
from rmq_spark.client.broker import Broker
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.options import KEY_PREFIX, ZOOKEEPER_HOSTS
from rmq_spark.ownership.zookeeper import EnsembleOptions, ensemble_of
from rmq_spark.redis.connection import ConnectionOptions, connection_of
from rmq_spark.spark.limits import Limits
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.topics.parsing import LONGEST_DURATION_MS, Values, duration_text
from rmq_spark.topics.types import TopicType

_PATTERN = "pattern:"  # a topic's name cannot contain a colon


@dataclass(frozen=True)
class Subscription:
    """The topics and the consumer group that a query reads.

    names: the topics, each once. pattern: a regular expression that must match whole names, used
    instead of names. owns: whether the query owns slots through ZooKeeper. Without ownership, a
    pattern skips exclusive topics.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    group: str = ""
    owns: bool = False

    @property
    def text(self) -> str:
        """The text that a checkpoint stores: sorted names, separated by commas, or the pattern."""
        if self.pattern is not None:
            return f"{_PATTERN}{self.pattern}"
        return ",".join(sorted(self.names))

    @property
    def is_single(self) -> bool:
        return self.pattern is None and len(self.names) == 1

    def continues(self, earlier: str) -> bool:
        """Return whether a query can continue from a checkpoint with the text ``earlier``.

        You can add topics to a list of names, but not remove them. A pattern must stay the same.
        """
        if self.pattern is not None or earlier.startswith(_PATTERN):
            return self.text == earlier
        return set(earlier.split(",")) <= set(self.names)

    def find(self, broker: Broker) -> list[TopicDefinition]:
        """Read the definitions of the topics, sorted by name.

        A pattern skips topics without the consumer group and, without ownership, exclusive topics.
        """
        if self.pattern is None:
            return broker.definitions(sorted(self.names))
        matches = re.compile(self.pattern).fullmatch
        return [
            topic
            for topic in broker.topics(matches, _refuse)  # not one topic less, without a word
            if self.group in topic.groups and (self.owns or not topic.exclusive)
        ]


def _refuse(topic: str, error: RmqError) -> None:
    raise error


@dataclass(frozen=True)
class SourceOptions:
    """The options of a streaming read. None means that the user did not give the option."""

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
    fail_on_data_loss: bool = True
    checkpoint: str | None = None
    include_headers: bool = False
    ensemble: EnsembleOptions | None = None

    @property
    def patience_s(self) -> float:
        """The time in seconds to retry a broken connection: at most half a lease."""
        return min(self.connection.patience_s, self.lease_ms / 2000)


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. None means that the user did not give the option.

    slot_basis, time_range, priority, fixed_time and delay (ms), time_to_live (ms) and expires_at
    are defaults for rows without such a value. topic_type, slot_amount and settings (by
    keyword of Broker.create) define a topic that the write creates.
    fail_past: whether a fixed time that has passed is an error. waits_for_room: whether a write
    waits while a topic is full.
    """

    connection: ConnectionOptions
    key_prefix: str
    topic: str | None
    topic_type: TopicType | None
    slot_amount: int | None
    slot_basis: bytes | None
    time_range: int | None
    priority: int | None
    fixed_time: int | None
    delay: int | None
    fail_past: bool
    waits_for_room: bool
    operation: str
    settings: Mapping[str, Any]
    time_to_live: int | None
    expires_at: int | None
    group: str | None
    exactly_once: bool


@dataclass(frozen=True)
class ListenerOptions:
    """The options of each_message. delay_ms: None for the topic's backoff."""

    connection: ConnectionOptions
    key_prefix: str
    timeout_ms: int | None
    delay_ms: int | None
    log_contents: bool


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    if any(name.lower() == "queue" for name in given):
        raise InvalidOption(
            "spark.readStream does not take the option queue: it consumes the messages that are "
            'due. Leave queue out, or read a queue as a table with spark.read.format("rmq").'
        )
    values = declared.SOURCE.parse(given)
    subscription = _subscription(values)
    return SourceOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        subscription=subscription,
        topic_type=values.get(declared.TOPIC_TYPE),
        slot_amount=values.get(declared.SLOT_AMOUNT),
        limits=_limits(values[declared.MAX_RECORDS_PER_TRIGGER], subscription),
        target_batch_ms=values.get(declared.TARGET_BATCH_DURATION),
        num_partitions=values.get(declared.NUM_PARTITIONS),
        lease_ms=values[declared.VISIBILITY_TIMEOUT],
        max_processing_ms=values.get(declared.MAX_PROCESSING_TIME),
        poll_interval_ms=values[declared.POLL_INTERVAL],
        release_on_stop=values[declared.RELEASE_ON_STOP],
        fail_on_data_loss=values[declared.FAIL_ON_DATA_LOSS],
        checkpoint=values.get(declared.CHECKPOINT),
        include_headers=values[declared.INCLUDE_HEADERS],
        ensemble=ensemble_of(values),
    )


def _subscription(values: Values) -> Subscription:
    wanted = (declared.SOURCE_TOPIC, declared.TOPICS, declared.TOPIC_PATTERN)
    given = [option.name for option in wanted if option in values]
    if len(given) != 1:
        found = f"The options {' and '.join(given)} exclude each other"
        raise InvalidOption(
            f"{found if given else 'The option topic is missing'}. Accepted: exactly one of topic "
            "(one name), topics (several names, separated by commas) and topicPattern (a regular "
            "expression)."
        )
    group = values[declared.GROUP]
    pattern = values.get(declared.TOPIC_PATTERN)
    if pattern is not None:
        return Subscription(pattern=pattern.pattern, group=group, owns=ZOOKEEPER_HOSTS in values)
    one = values.get(declared.SOURCE_TOPIC)
    names = values.get(declared.TOPICS) if one is None else (one,)
    return Subscription(names=names or (), group=group)


def _limits(limit: int | dict[str, int], subscription: Subscription) -> Limits:
    if isinstance(limit, int):
        return Limits(total=limit or None)  # 0 means no limit
    strangers = [name for name in limit if name not in (subscription.names or limit)]
    if strangers:
        raise InvalidOption(
            f"maxRecordsPerTrigger names {', '.join(strangers)}, which this query does not read. "
            f"Accepted: {', '.join(subscription.names)}."
        )
    return Limits(of_topic=limit, of_others=declared.DEFAULT_MAX_RECORDS)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    values = declared.SINK.parse(given)
    _check_operation(values)
    return SinkOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        topic=values.get(declared.SINK_TOPIC),
        topic_type=values.get(declared.TOPIC_TYPE),
        slot_amount=values.get(declared.SLOT_AMOUNT),
        slot_basis=values.get(declared.SLOT_BASIS),
        **{keyword: values.get(option) for keyword, option in declared.VALUES.items()},
        fail_past=values[declared.PAST_FIXED_TIME] == "fail",
        waits_for_room=values[declared.ON_FULL] == "wait",
        operation=values[declared.OPERATION],
        settings={
            keyword: values[option]
            for keyword, option in declared.OF_SETTINGS.items()
            if option in values
        },
        time_to_live=values.get(declared.TIME_TO_LIVE),
        expires_at=values.get(declared.EXPIRES_AT),
        group=values.get(declared.SINK_GROUP),
        exactly_once=values[declared.DELIVERY_GUARANTEE] == declared.EXACTLY_ONCE,
    )


def _check_operation(values: Values) -> None:
    operation = values[declared.OPERATION]
    if values[declared.DELIVERY_GUARANTEE] == declared.EXACTLY_ONCE and operation != "send":
        raise InvalidOption(
            f"deliveryGuarantee=exactlyOnce is not accepted with operation={operation}. Accepted: "
            "operation=send. The other operations can be repeated without harm."
        )
    _check_delay(operation, values)
    group = values.get(declared.SINK_GROUP)
    if group is not None and operation not in ("cancel", "requeue", "purge"):
        raise InvalidOption(
            f"group={group_text(group)!r} is not accepted with operation={operation}. Accepted: "
            "with cancel, requeue and purge. Leave it out: send delivers to all consumer groups "
            "of a topic, and rollback takes the group from claimId."
        )


def _check_delay(operation: str, values: Values) -> None:
    delay, time = values.get(declared.SINK_DELAY), values.get(declared.VALUES["fixed_time"])
    if delay is None:
        return
    if operation == "rollback" and delay > LONGEST_DURATION_MS:
        raise InvalidOption(
            f"delay={delay} (ms) is too long for operation=rollback. Accepted: 0 to "
            f"{LONGEST_DURATION_MS} ms, which is {duration_text(LONGEST_DURATION_MS)}."
        )
    if operation in ("send", "requeue") and time is not None:
        raise InvalidOption(
            f"The options delay={delay} (ms) and fixedTime={time} exclude each other. Accepted: "
            "one of them; rows may have either in columns of these names."
        )


def parse_listener_options(given: Mapping[str, str]) -> ListenerOptions:
    values = declared.LISTENER.parse(given)
    return ListenerOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        timeout_ms=values.get(declared.TIMEOUT),
        delay_ms=values.get(declared.RETRY_DELAY),
        log_contents=values[declared.LOG_CONTENTS],
    )
