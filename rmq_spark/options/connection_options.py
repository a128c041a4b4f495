"""The options of the connection to Redis: ``redis.*`` and ``keyPrefix``."""

from typing import Any
from urllib.parse import urlsplit

from rmq_spark.options.option import Option, OptionTable
from rmq_spark.topics.definition import check_key_prefix
from rmq_spark.topics.parsers import (
    FILE,
    FLAG,
    TEXT,
    NotAccepted,
    Parser,
    checked_text,
    choice,
    duration,
    whole,
)

URL_VARIABLE = "RMQ_REDIS_URL"
DEFAULT_URL = "redis://127.0.0.1:6379/0"
REDIS = "redis."
# WAIT must answer before the socket's timeout, which is 15 s by default.
LONGEST_REPLICA_TIMEOUT_MS = 10_000
MOST_REPLICAS = 1000
DEFAULT_SENTINEL_PORT = 26379
_SCHEMES = ("redis", "rediss", "unix")


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
    """Parse the host and port of each Sentinel. Raises NotAccepted."""
    return tuple(_sentinel(host.strip()) for host in text.split(","))


def _sentinel(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or DEFAULT_SENTINEL_PORT
    except ValueError:
        raise NotAccepted from None
    if not host or "@" in text or "/" in text:
        raise NotAccepted
    return host, port


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
        *(URL, USERNAME, PASSWORD, CLUSTER),
        *(SENTINELS, SENTINEL_MASTER, SENTINEL_USERNAME, SENTINEL_PASSWORD),
        *(MIN_REPLICAS, REPLICA_TIMEOUT, *CLIENT, KEY_PREFIX),
    ),
)
