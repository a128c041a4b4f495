"""Typed values of the options of a read, a write or each_message."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.options import listener_options as listener
from rmq_spark.options import sink_options as sink
from rmq_spark.options import source_options as source
from rmq_spark.options import topic_options as topic
from rmq_spark.options.connection_options import KEY_PREFIX
from rmq_spark.options.ensemble_options import HOSTS
from rmq_spark.options.option import Values
from rmq_spark.ownership.ensemble import EnsembleOptions, ensemble_of
from rmq_spark.spark.batch_limits import Limits
from rmq_spark.spark.subscription import Subscription
from rmq_spark.topics.definition import group_text
from rmq_spark.topics.durations import LONGEST_DURATION_MS, duration_text
from rmq_spark.topics.topic_types import TopicType
from rmq_spark.transport.connection import ConnectionOptions, connection_of


@dataclass(frozen=True)
class SourceOptions:
    """The options of a streaming read. None means that the user did not give the option.

    Fields that end in ``_ms`` are in milliseconds. ensemble: the ZooKeeper servers through which
    queries own slots.
    """

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
    are defaults for rows without such a value. topic_type, slot_amount, max_retries, retry_backoff,
    groups, keyed, payload, on_expiry and dead_retention (ms) define a topic that the write creates.
    fail_past: whether a fixed time that has passed is an error.
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
    operation: str
    max_retries: int | None
    retry_backoff: str | None
    groups: tuple[str, ...] | None
    keyed: bool | None
    payload: str | None
    on_expiry: str | None
    dead_retention: int | None
    time_to_live: int | None
    expires_at: int | None
    group: str | None
    exactly_once: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for a topic that this write creates, without those that are not given."""
        given = {
            "max_retries": self.max_retries,
            "retry_backoff": self.retry_backoff,
            "groups": self.groups,
            "keyed": self.keyed,
            "payload": self.payload,
            "on_expiry": self.on_expiry,
            "dead_retention": self.dead_retention,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ListenerOptions:
    """The options of each_message.

    timeout_ms: the time limit for one call of the function; None for no limit. delay_ms: the wait
    before the retry of a message that failed; None for the topic's backoff.
    """

    connection: ConnectionOptions
    key_prefix: str
    timeout_ms: int | None
    delay_ms: int | None
    log_contents: bool


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a streaming read. Raises InvalidOption for one that is not accepted."""
    if any(name.lower() == "queue" for name in given):
        raise InvalidOption(
            "spark.readStream does not take the option queue: it consumes the messages that are "
            'due. Leave queue out, or read a queue as a table with spark.read.format("rmq").'
        )
    values = source.SOURCE.parse(given)
    subscription = _subscription(values)
    return SourceOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        subscription=subscription,
        topic_type=values.get(topic.TOPIC_TYPE),
        slot_amount=values.get(topic.SLOT_AMOUNT),
        limits=_limits(values[source.MAX_RECORDS_PER_TRIGGER], subscription),
        target_batch_ms=values.get(source.TARGET_BATCH_DURATION),
        num_partitions=values.get(source.NUM_PARTITIONS),
        lease_ms=values[source.VISIBILITY_TIMEOUT],
        max_processing_ms=values.get(source.MAX_PROCESSING_TIME),
        poll_interval_ms=values[source.POLL_INTERVAL],
        release_on_stop=values[source.RELEASE_ON_STOP],
        include_headers=values[source.INCLUDE_HEADERS],
        ensemble=ensemble_of(values),
    )


def _subscription(values: Values) -> Subscription:
    wanted = (source.TOPIC, source.TOPICS, source.TOPIC_PATTERN)
    given = [option.name for option in wanted if option in values]
    if len(given) != 1:
        found = f"The options {' and '.join(given)} exclude each other"
        raise InvalidOption(
            f"{found if given else 'The option topic is missing'}. Accepted: exactly one of topic "
            "(one name), topics (several names, separated by commas) and topicPattern (a regular "
            "expression)."
        )
    group = values[topic.GROUP]
    pattern = values.get(source.TOPIC_PATTERN)
    if pattern is not None:
        return Subscription(pattern=pattern, group=group, owns=HOSTS in values)
    one = values.get(source.TOPIC)
    names = values.get(source.TOPICS) if one is None else (one,)
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
    return Limits(of_topic=limit, of_others=source.DEFAULT_MAX_RECORDS)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises InvalidOption for one that is not accepted."""
    values = sink.SINK.parse(given)
    _check_operation(values)
    return SinkOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        topic=values.get(sink.TOPIC),
        topic_type=values.get(topic.TOPIC_TYPE),
        slot_amount=values.get(topic.SLOT_AMOUNT),
        slot_basis=values.get(sink.SLOT_BASIS),
        **{keyword: values.get(option) for keyword, option in topic.VALUES.items()},
        fail_past=values[sink.PAST_FIXED_TIME] == "fail",
        operation=values[sink.OPERATION],
        max_retries=values.get(topic.MAX_RETRIES),
        retry_backoff=values.get(topic.RETRY_BACKOFF),
        groups=values.get(topic.GROUPS),
        keyed=values.get(topic.KEYED),
        payload=values.get(topic.PAYLOAD),
        on_expiry=values.get(topic.ON_EXPIRY),
        dead_retention=values.get(topic.DEAD_RETENTION),
        time_to_live=values.get(topic.TIME_TO_LIVE),
        expires_at=values.get(topic.EXPIRES_AT),
        group=values.get(sink.GROUP),
        exactly_once=values[sink.DELIVERY_GUARANTEE] == sink.EXACTLY_ONCE,
    )


def _check_operation(values: Values) -> None:
    """Check that the operation accepts the guarantee, the delay and the group.

    Raises InvalidOption.
    """
    operation = values[sink.OPERATION]
    if values[sink.DELIVERY_GUARANTEE] == sink.EXACTLY_ONCE and operation != "send":
        raise InvalidOption(
            f"deliveryGuarantee=exactlyOnce is not accepted with operation={operation}. Accepted: "
            "operation=send. The other operations can be repeated without harm."
        )
    _check_delay(operation, values)
    group = values.get(sink.GROUP)
    if group is not None and operation not in ("cancel", "requeue", "purge"):
        raise InvalidOption(
            f"group={group_text(group)!r} is not accepted with operation={operation}. Accepted: "
            "with cancel, requeue and purge. Leave it out: send delivers to all consumer groups "
            "of a topic, and rollback takes the group from claimId."
        )


def _check_delay(operation: str, values: Values) -> None:
    delay, time = values.get(sink.DELAY), values.get(topic.VALUES["fixed_time"])
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
    """Parse the options of each_message. Raises InvalidOption for one that is not accepted."""
    values = listener.LISTENER.parse(given)
    return ListenerOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        timeout_ms=values.get(listener.TIMEOUT),
        delay_ms=values.get(listener.DELAY),
        log_contents=values[listener.LOG_CONTENTS],
    )
