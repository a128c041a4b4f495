"""Every option: its name, default, parser, bounds and help. Nothing here opens a connection.

Read rmq_spark.topics.parsing first: this is a list of its Options, and at the end of each part the
table of those that one place accepts.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import (
    DEFAULT_GROUP_TEXT,
    DEFAULT_SLOT_AMOUNT,
    MOST_SLOTS,
    SETTINGS,
    check_key_prefix,
    check_slot_amount,
    check_topic_name,
    parse_group,
)
from rmq_spark.topics.keys import ACCEPTED_NAME
from rmq_spark.topics.parsing import (
    FILE,
    FLAG,
    HIGHEST_WHOLE,
    LONGEST_DURATION_MS,
    MOMENT,
    TEXT,
    NotAccepted,
    Option,
    OptionTable,
    Parser,
    checked_text,
    choice,
    duration,
    duration_or_whole,
    duration_text,
    moment_or_relative,
    whole,
)
from rmq_spark.topics.types import LONGEST_WAIT_MS, TOPIC_TYPES, MessageValue, parse_topic_type

URL_VARIABLE = "RMQ_REDIS_URL"
DEFAULT_URL = "redis://127.0.0.1:6379/0"
REDIS = "redis."
# WAIT must answer before the socket's timeout, which is 15 s by default.
LONGEST_REPLICA_TIMEOUT_MS = 10_000
MOST_REPLICAS = 1000
DEFAULT_SENTINEL_PORT = 26379
_SCHEMES = ("redis", "rediss", "unix")
ZOOKEEPER = "zookeeper."
# ZooKeeper's own tick is 2 s, and it accepts 2 to 20 ticks.
SHORTEST_SESSION_MS = 1_000
LONGEST_SESSION_MS = 3_600_000
_SERVER = re.compile(r"(?:(?!-)[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_PATH = re.compile(r"(/[^/\x00-\x1f\x7f]+)+")
# Spark itself puts these among the options of a source or sink.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
DEFAULT_MAX_RECORDS = 500_000
DEFAULT_VISIBILITY_TIMEOUT = "60s"
# The default without numPartitions. A task costs Spark some 20 ms besides reading, a small part of
# the time that so many messages take.
MESSAGES_A_TASK = 32_768
MOST_TASKS = 8
SHORTEST_LEASE_MS = 1_000
AT_LEAST_ONCE, EXACTLY_ONCE = "atLeastOnce", "exactlyOnce"
_SLOT_RANGE = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")


# -- Redis: ``redis.*`` and ``keyPrefix``


def in_url(host: str) -> str:
    """Return a host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _check_url(url: str) -> None:
    """Check an URL. Raises NotAccepted for one that redis-py could take for another address."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in _SCHEMES and (parts.port is None or parts.port > 0)
        database = parts.path.strip("/")
        valid = valid and (bool(database) if parts.scheme == "unix" else _is_number(database))
        # An unescaped # or ? of a password ends the authority: half of it would pass as the host.
        valid = valid and "#" not in url and "@" not in parts.path + parts.query
    except ValueError:
        valid = False
    if not valid:
        raise NotAccepted


def _is_number(database: str) -> bool:
    """Return whether a path names a database. For any other text redis-py would take the first."""
    return not database or database.isdecimal()


def _sentinels(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(_sentinel(host.strip()) for host in text.split(","))


def _sentinel(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or DEFAULT_SENTINEL_PORT
    except ValueError:
        raise NotAccepted from None
    if not host or host.startswith("-") or "@" in text or "/" in text:
        raise NotAccepted
    return host, port


def _check_function_name(text: str) -> None:
    module, colon, function = text.partition(":")
    names = [*module.split("."), function]
    if not colon or not all(name.isidentifier() for name in names):
        raise NotAccepted


def _check_client_name(text: str) -> None:
    if not text or not text.isprintable() or " " in text:
        raise NotAccepted


def _seconds(low_ms: int) -> Parser[float]:
    """Make a parser of durations in seconds, the unit of redis-py."""
    in_ms = duration(low_ms)
    return Parser(lambda text: in_ms.read(text) / 1000, in_ms.accepted)


URL = Option(
    "redis.url",
    checked_text(
        _check_url,
        "`redis://host:6379/0`, `rediss://host:6380/0` (TLS) or `unix:///run/redis.sock?db=0`",
        "Escape special characters of a user or password: %23 for #, %3F for ?, %40 for @, %2F for "
        "/. Or set redis.username and redis.password.",
    ),
    "The address of Redis",
    otherwise=f"`{URL_VARIABLE}`, else `{DEFAULT_URL}`",
    is_secret=True,
)
USERNAME = Option("redis.username", TEXT, "User to log in as")
PASSWORD = Option(
    "redis.password",
    TEXT,
    f"Password of the user. Better: put it into the address in `{URL_VARIABLE}`",
    is_secret=True,
    see="security.md#where-to-put-the-password",
)
CREDENTIAL_PROVIDER = Option(
    "redis.credentialProvider",
    checked_text(_check_function_name, "`module:function`"),
    "Function without arguments that returns a CredentialProvider of redis-py. Executors need it, "
    "too",
    see="security.md#passwords-that-change",
)
CLUSTER = Option(
    "redis.cluster",
    FLAG,
    "Whether Redis is a Redis Cluster",
    default="false",
    see="scaling.md#redis-cluster",
)
SENTINELS = Option(
    "redis.sentinels",
    Parser(
        _sentinels,
        "host:port, separated by commas: `host1:26379,host2:26379`",
        "Log in to the Sentinels with redis.sentinelUsername and redis.sentinelPassword.",
    ),
    "Sentinels that name the master, instead of `redis.url`",
    is_secret=True,
    see="scaling.md#sentinel",
)
SENTINEL_MASTER = Option(
    "redis.sentinelMaster",
    TEXT,
    "Name under which the Sentinels watch the master. Required with `redis.sentinels`",
)
SENTINEL_USERNAME = Option("redis.sentinelUsername", TEXT, "User to log in to the Sentinels as")
SENTINEL_PASSWORD = Option("redis.sentinelPassword", TEXT, "Password of that user", is_secret=True)
MIN_REPLICAS = Option(
    "redis.minReplicas",
    whole(0, MOST_REPLICAS),
    "Number of replicas that must confirm each write",
    default="0",
    see="scaling.md#what-a-failover-can-lose",
)
REPLICA_TIMEOUT = Option(
    "redis.replicaTimeout",
    duration(1, LONGEST_REPLICA_TIMEOUT_MS),
    "How long to wait for the replicas. Must be shorter than `redis.socketTimeout`",
    default="1s",
)
SOCKET_TIMEOUT = Option(
    "redis.socketTimeout",
    _seconds(1),
    "How long to wait for a reply",
    # Longer than any script blocks Redis; a reply that takes longer is lost.
    default="15s",
)
# Options passed on to redis-py, which has the same names with underscores.
CLIENT: tuple[Option[Any], ...] = (
    SOCKET_TIMEOUT,
    Option(
        "redis.socketConnectTimeout", _seconds(1), "How long to wait for a connection", default="5s"
    ),
    Option("redis.socketKeepalive", FLAG, "Whether to use TCP keepalive", default="true"),
    Option(
        "redis.clientName",
        checked_text(_check_client_name, "text without spaces"),
        "Name of the connections in `CLIENT LIST`",
    ),
    Option("redis.sslCaCerts", FILE, "Certificate authorities to trust besides the system's"),
    Option("redis.sslCertfile", FILE, "Certificate of the client"),
    Option("redis.sslKeyfile", FILE, "Key of that certificate"),
    Option("redis.sslPassword", TEXT, "Password of the key", is_secret=True),
    Option(
        "redis.sslCertReqs",
        choice("required", "optional", "none"),
        "Whether to verify the server's certificate; `none` does not",
        otherwise="`required`",
        see="security.md#tls",
    ),
    Option(
        "redis.sslCheckHostname",
        FLAG,
        "Whether the server's certificate must name the host",
        otherwise="`true`",
    ),
)
KEY_PREFIX = Option(
    "keyPrefix",
    checked_text(check_key_prefix, "a text that ends in a colon and has no braces: `shop:`"),
    "The prefix of every key",
    default="",
)
CONNECTION = OptionTable(
    "the connection to Redis",
    (
        *(URL, USERNAME, PASSWORD, CREDENTIAL_PROVIDER, CLUSTER),
        *(SENTINELS, SENTINEL_MASTER, SENTINEL_USERNAME, SENTINEL_PASSWORD),
        *(MIN_REPLICAS, REPLICA_TIMEOUT, *CLIENT, KEY_PREFIX),
    ),
)


# -- ZooKeeper: ``zookeeper.*``


def _hosts(text: str) -> str:
    hosts, slash, chroot = text.strip().partition("/")
    servers = [_SERVER.fullmatch(server) for server in hosts.split(",")]
    valid = all(server and 0 < int(server["port"] or 1) < 65_536 for server in servers)
    if not valid or (slash and ("," in chroot or not _is_path(f"/{chroot}"))):
        raise NotAccepted
    return text.strip()


def _check_path(text: str) -> None:
    if not _is_path(text):
        raise NotAccepted


def _is_path(text: str) -> bool:
    return bool(_PATH.fullmatch(text)) and not set(text.split("/")) & {".", ".."}


ZOOKEEPER_HOSTS = Option(
    "zookeeper.hosts",
    Parser(
        _hosts,
        "host:port, separated by commas, with an optional path after the last host: "
        "`zk1:2181,zk2:2181/queues`",
    ),
    "Share the slots with other queries, through this ZooKeeper",
    see="ownership.md",
)
ZOOKEEPER_ROOT = Option(
    "zookeeper.root",
    checked_text(_check_path, "a path: `/shop/rmq`"),
    "Path below which rmq-spark keeps its nodes",
    default="/rmq",
)
SESSION_TIMEOUT = Option(
    "zookeeper.sessionTimeout",
    duration(
        SHORTEST_SESSION_MS,
        LONGEST_SESSION_MS,
        "ZooKeeper itself takes 2 to 20 of its ticks, by default 4s to 40s, and uses the nearest.",
    ),
    "How long a query can be out of touch before others get its slots. ZooKeeper limits "
    "it to 2 to 20 of its ticks",
    default="10s",
)
ZOOKEEPER_USERNAME = Option("zookeeper.username", TEXT, "User (digest). Required with the password")
ZOOKEEPER_PASSWORD = Option("zookeeper.password", TEXT, "Password of the user", is_secret=True)
ZOOKEEPER_SSL = Option(
    "zookeeper.ssl", FLAG, "Whether to use TLS, which verifies the server's name", default="false"
)
ZOOKEEPER_CA_CERTS = Option(
    "zookeeper.sslCaCerts",
    FILE,
    "Certificate authorities to trust",
    otherwise="those of the system",
)
ZOOKEEPER_CERTFILE = Option("zookeeper.sslCertfile", FILE, "Certificate of the client")
ZOOKEEPER_KEYFILE = Option("zookeeper.sslKeyfile", FILE, "Key of that certificate")
ZOOKEEPER_KEY_PASSWORD = Option(
    "zookeeper.sslPassword", TEXT, "Password of the key", is_secret=True
)
ZOOKEEPER_TLS = (ZOOKEEPER_CA_CERTS, ZOOKEEPER_CERTFILE, ZOOKEEPER_KEYFILE, ZOOKEEPER_KEY_PASSWORD)
ENSEMBLE = OptionTable(
    "ZooKeeper",
    (
        ZOOKEEPER_HOSTS,
        ZOOKEEPER_ROOT,
        SESSION_TIMEOUT,
        ZOOKEEPER_USERNAME,
        ZOOKEEPER_PASSWORD,
        ZOOKEEPER_SSL,
        *ZOOKEEPER_TLS,
    ),
)


# -- topics: their names, what defines new ones, and the values of messages


TOPIC_NAME = checked_text(check_topic_name, ACCEPTED_NAME)
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
OF_SETTINGS = {
    keyword: setting.option for keyword, setting in SETTINGS.items() if setting.in_writes
}


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


def typed_value(of: MessageValue, now_ms: Callable[[], int]) -> Option[int]:
    """Return the option of a value as people type it: a time may be relative to now."""
    parser = moment_or_relative(now_ms) if of.can_be_past else of.parser
    return replace(VALUES[of.keyword], parser=parser)


# -- ``spark.readStream.format("rmq")``


def _topic_names(text: str) -> tuple[str, ...]:
    names = (check_topic_name(name.strip()) for name in text.split(","))
    return tuple(dict.fromkeys(names))


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise NotAccepted(f"is not a regular expression ({error})") from None


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


SOURCE_TOPIC = Option("topic", TOPIC_NAME, "Topic to read. It must exist")
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
    "Most messages in a batch, in total or of each topic; 0: no limit. A topic that the JSON does "
    "not name keeps the default",
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
    "Whether a query that stops or fails gives its last batch to others at once. Without "
    "`checkpointLocation`, a finished batch then comes a second time",
    default="false",
    see="consume.md#stop-and-start-again",
)
CHECKPOINT = Option(
    "checkpointLocation",
    Parser(str, "a path that pyarrow can read on the driver"),
    "The same as that of the query. With it, a query that stops commits its finished batch; up to "
    "Spark 4.1, a run with `availableNow` otherwise leaves its batch claimed",
    otherwise="none",
    see="consume.md#stop-and-start-again",
)
FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss",
    FLAG,
    "Whether to fail if the last batch of the query is unfinished and Redis does not know the "
    "query, because Redis is another one or was emptied. With `false`, the query goes on without "
    "these messages",
    default="true",
    see="reliability.md#restore-a-backup-or-start-with-an-empty-redis",
)
POLL_INTERVAL = Option(
    "pollInterval",
    duration(1),
    "How long to wait before asking Redis again when nothing is due, if it cannot wake the query",
    default="100ms",
)
INCLUDE_HEADERS = Option(
    "includeHeaders", FLAG, "Whether rows have the column `headers`", default="false"
)
SOURCE = OptionTable(
    "the rmq source",
    (
        *(SOURCE_TOPIC, TOPICS, TOPIC_PATTERN, GROUP),
        replace(TOPIC_TYPE, help="Fail if the topic has another type; the source makes no topic"),
        replace(SLOT_AMOUNT, help="Fail if the topic has another number of slots", otherwise=""),
        *(MAX_RECORDS_PER_TRIGGER, TARGET_BATCH_DURATION, NUM_PARTITIONS, VISIBILITY_TIMEOUT),
        *(MAX_PROCESSING_TIME, RELEASE_ON_STOP, FAIL_ON_DATA_LOSS, CHECKPOINT, POLL_INTERVAL),
        INCLUDE_HEADERS,
        *(*CONNECTION.options, *ENSEMBLE.options),
    ),
    passed_over=SPARKS_OWN - {"checkpointlocation"},
)


# -- ``df.write.format("rmq")`` and ``df.writeStream.format("rmq")``


SINK_TOPIC = Option("topic", TOPIC_NAME, "Topic to send to, unless the rows have a column `topic`")
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
SINK_DELAY = replace(
    VALUES["delay"],
    help=f"{VALUES['delay'].help}. With `rollback`: the wait before the retry, at most "
    f"`{duration_text(LONGEST_DURATION_MS)}`",
    otherwise="with `rollback`: the topic's backoff",
)
SINK_GROUP = Option(
    "group",
    GROUP_NAME,
    "The consumer group of a `cancel` (by default, all groups), `requeue` (by default, the group "
    "`default`, or the first if there is none) or `purge` (required if there are several groups)",
    otherwise="by operation",
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
ON_FULL = Option(
    "onFull",
    choice("fail", "wait"),
    "What to do when a topic has no room, by its `maxMessages` or `maxBytes`: fail, or wait for it",
    default="fail",
)
SINK = OptionTable(
    "the rmq sink",
    (
        *(
            SINK_TOPIC,
            TOPIC_TYPE,
            SLOT_AMOUNT,
            SLOT_BASIS,
            *(VALUES | {"delay": SINK_DELAY}).values(),
        ),
        *(TIME_TO_LIVE, EXPIRES_AT, OPERATION),
        *(*OF_SETTINGS.values(), SINK_GROUP),
        *(DELIVERY_GUARANTEE, PAST_FIXED_TIME, ON_FULL, *CONNECTION.options),
    ),
    passed_over=SPARKS_OWN,
)


# -- a queue read as a table


def _queues(text: str) -> tuple[QueueKind, ...]:
    names = [name.strip().lower() for name in text.split(",")]
    if names == ["all"]:
        return tuple(QueueKind)
    if not set(names) <= set(QueueKind):
        raise NotAccepted
    return tuple(kind for kind in QueueKind if kind in names)


def _slots(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _SLOT_RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= MOST_SLOTS:
            raise NotAccepted
        found.update(range(first, last + 1))
    return frozenset(found)


TABLE_TOPIC = Option("topic", TOPIC_NAME, "Topic to show. It must exist")
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
        *(TABLE_TOPIC, QUEUE, GROUP, SLOTS, STARTING_TIME, ENDING_TIME),
        replace(NUM_PARTITIONS, help="Number of tasks"),
        *CONNECTION.options,
    ),
    passed_over=SPARKS_OWN,
)


# -- ``rmq_spark.each_message``


TIMEOUT = Option(
    "timeout",
    duration(1),
    "The longest time for a call. A call that takes longer is ended, and its messages are rolled "
    "back",
    otherwise="no limit",
)
RETRY_DELAY = Option(
    "delay",
    duration(0),
    "Wait before a message that failed is redelivered",
    otherwise="the topic's backoff",
)
LOG_CONTENTS = Option(
    "logContents",
    FLAG,
    "Whether the log of a failure shows the first 80 characters of the message and the text of the "
    "error, or only the class of the error",
    default="true",
)
LISTENER = OptionTable("each_message", (TIMEOUT, RETRY_DELAY, LOG_CONTENTS, *CONNECTION.options))


# -- arguments of jobs whose values are durations or numbers


TOPICS_OF_JOB = Option(
    "--topics", TOPIC_PATTERN.parser, "a regular expression that must match whole names", ".*"
)
TRIGGER = Option("--trigger", duration(0), "how often to start a batch, such as 10s")
HORIZON = Option(
    "--horizon",
    duration(0),
    "relay messages that are due within this time; choose more than the longest stop of this job",
    default="10m",
)
LIMIT = Option("--limit", whole(1), "most messages in one transaction", default="10000")
INTERVAL = Option(
    "--interval",
    duration(1),
    "how often to look for messages that nobody announced (default: 1s in PostgreSQL, which "
    "announces those of services; 10ms in MariaDB)",
)
KEEP = Option(
    "--keep",
    duration(0),
    "delete rows so long after their messages were sent, such as 30d (default: keep them)",
)
MAX_REFUSED = Option(
    "--max-refused",
    whole(1),
    "fail if more messages of a batch are refused: the job itself is wrong then",
    default="1000",
)
