"""Options as Spark hands them over, and how a value of each kind is read."""

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.definition import check_key_prefix, check_slot_amount
from rmq_spark.topics.durations import ACCEPTED as ACCEPTED_DURATION
from rmq_spark.topics.durations import LONGEST_DURATION_MS, parse_duration_ms
from rmq_spark.topics.moments import parse_moment_ms
from rmq_spark.topics.topic_types import TopicType, parse_topic_type
from rmq_spark.topics.whole_numbers import parse_whole
from rmq_spark.transport.connection import CLIENT_OPTIONS, ConnectionOptions, parse_connection

# More than a year is a slip, and threads cannot wait for ever so long.
REDIS = "redis."
# What Spark itself puts among the options of a source or sink.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})


@dataclass(frozen=True)
class Option:
    """One option as the documentation lists it."""

    name: str
    default: str
    meaning: str


CONNECTION = (
    Option("redis.url", "RMQ_REDIS_URL, else redis://127.0.0.1:6379/0", "where Redis is"),
    Option("redis.username", "", "user"),
    Option("redis.password", "", "password"),
    Option("redis.cluster", "false", "whether it is a Redis Cluster"),
    Option("redis.sentinels", "", "host:port by commas: who names the server, instead of an url"),
    Option("redis.sentinelMaster", "", "the name under which they know it"),
    Option("redis.sentinelUsername", "", "user of the Sentinels"),
    Option("redis.sentinelPassword", "", "their password"),
    Option("redis.minReplicas", "0", "replicas that must confirm what is written"),
    Option("redis.replicaTimeout", "1s", "how long they are waited for, up to 10s"),
    *(Option(f"{REDIS}{name}", "", "passed to the client") for name in CLIENT_OPTIONS),
    Option("keyPrefix", "", "stands before every key; ends in a colon"),
)


class Given:
    """The options as Spark hands them over: names in lower case, values as text."""

    def __init__(
        self, given: Mapping[str, str], accepted: tuple[Option, ...], purpose: str
    ) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        self._accepted = accepted
        self._purpose = purpose

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str) -> str | None:
        """The text of an option, or None."""
        return self._values.get(name.lower())

    def refuse_unknown(self) -> None:
        """Raises InvalidOption for a name that is none of those accepted."""
        known = {option.name.lower() for option in self._accepted} | SPARKS_OWN
        # redis-py writes some of its names with underscores; connection() reads both.
        unknown = sorted(n for n in self._values if n not in known and not n.startswith(REDIS))
        if unknown:
            raise InvalidOption(
                f"Unknown option for {self._purpose} rmq: {', '.join(unknown)}. "
                f"Accepted: {', '.join(option.name for option in self._accepted)}."
            )

    def connection(self) -> ConnectionOptions:
        """Where Redis is, and how it is reached."""
        return parse_connection(self.behind(REDIS))

    def behind(self, prefix: str) -> dict[str, str]:
        """The options of that prefix, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self._values.items()
            if name.startswith(prefix)
        }

    def key_prefix(self) -> str:
        """What stands before every key."""
        return check_key_prefix(self.get("keyPrefix") or "")

    def topic_type(self) -> TopicType | None:
        """The type of a topic, or None."""
        text = self.get("topicType")
        return None if text is None else parse_topic_type(text)

    def slot_amount(self) -> int | None:
        """The slots of a topic, or None."""
        text = self.get("slotAmount")
        return None if text is None else check_slot_amount(text)

    def one_of(self, name: str, accepted: tuple[str, ...]) -> str:
        """The value, in any case; the first one accepted is the default."""
        text = self.get(name)
        if text is None:
            return accepted[0]
        for value in accepted:
            if value.lower() == text.strip().lower():
                return value
        raise InvalidOption(f"{name}={text!r} is not accepted. Accepted: {', '.join(accepted)}.")

    def optional_whole(self, name: str, lowest: int, highest: int) -> int | None:
        """A whole number within these, or None."""
        text = self.get(name)
        return None if text is None else parse_whole(name, text, lowest, highest)

    def whole(self, name: str, lowest: int, default: int) -> int:
        """A whole number from the lowest on."""
        value = self.optional_whole(name, lowest, 2**31 - 1)
        return default if value is None else value

    def duration(self, name: str, default_ms: int, longest_ms: int = LONGEST_DURATION_MS) -> int:
        """A duration in ms, 0 among them."""
        text = self.get(name)
        value = default_ms if text is None else parse_duration_ms(name, text)
        if value > longest_ms:
            days = longest_ms // 86_400_000
            raise InvalidOption(f"{name}={text!r} is too long. Accepted: up to {days}d.")
        return value

    def positive_duration(
        self, name: str, default_ms: int, longest_ms: int = LONGEST_DURATION_MS
    ) -> int:
        """A duration of 1 ms or more, in ms."""
        value = self.duration(name, default_ms, longest_ms)
        if value < 1:
            raise InvalidOption(f"{name}={self.get(name)!r} is 0. Accepted: {ACCEPTED_DURATION}.")
        return value

    def value_of(self, topic_type: TopicType) -> int | None:
        """The option that gives all messages the value of that type, or None."""
        text = self.get(topic_type.value_name)
        return None if text is None else topic_type.parse(topic_type.value_name, text)

    def moment(self, name: str) -> int | None:
        """A point in time in ms since 1970, or None."""
        text = self.get(name)
        return None if text is None else parse_moment_ms(name, text)
