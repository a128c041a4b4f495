"""Where Redis is and how it is reached: options to a redis-py client."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.durations import parse_duration_ms

URL_VARIABLE = "RMQ_REDIS_URL"
DEFAULT_URL = "redis://127.0.0.1:6379/0"
CONNECT_TIMEOUT_S = 5.0
# Longer than the longest script may block Redis; a reply that takes longer is lost.
SOCKET_TIMEOUT_S = 15.0
# How long a broken connection is tried again, unless a shorter lease asks for less.
PATIENCE_S = 10.0
# Where a replica takes over: a cluster's nodes notice after cluster-node-timeout, by default 15 s.
FAILOVER_PATIENCE_S = 25.0
# WAIT answers within it, so it ends before the socket's time does.
LONGEST_REPLICA_TIMEOUT_MS = 10_000
DEFAULT_REPLICA_TIMEOUT_MS = 1_000
MOST_REPLICAS = 1000
DEFAULT_SENTINEL_PORT = 26379
_SCHEMES = ("redis", "rediss", "unix")


def _seconds(name: str, text: str) -> float:
    return parse_duration_ms(name, text) / 1000


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{name}={text!r} is not accepted. Accepted: true or false.")
    return text.strip().lower() == "true"


def _text(_: str, text: str) -> str:
    return text


def _cert_reqs(name: str, text: str) -> str:
    if text not in ("required", "optional", "none"):
        raise InvalidOption(f"{name}={text!r} is not accepted. Accepted: required, optional, none.")
    return text


def _file(name: str, text: str) -> str:
    if not (os.path.isfile(text) and os.access(text, os.R_OK)):
        raise InvalidOption(
            f"{name}={text!r} is not accepted. Accepted: a file that is there and can be read."
        )
    return text


# Further options of the client: the name behind "redis.", redis-py's own name, and its parser.
CLIENT_OPTIONS = {
    "socketTimeout": ("socket_timeout", _seconds),
    "socketConnectTimeout": ("socket_connect_timeout", _seconds),
    "socketKeepalive": ("socket_keepalive", _flag),
    "clientName": ("client_name", _text),
    "sslCaCerts": ("ssl_ca_certs", _file),
    "sslCertfile": ("ssl_certfile", _file),
    "sslKeyfile": ("ssl_keyfile", _file),
    "sslPassword": ("ssl_password", _text),
    "sslCertReqs": ("ssl_cert_reqs", _cert_reqs),
    "sslCheckHostname": ("ssl_check_hostname", _flag),
}
_SENTINEL_OPTIONS = ("sentinels", "sentinelMaster", "sentinelUsername", "sentinelPassword")
_REPLICA_OPTIONS = ("minReplicas", "replicaTimeout")
CONNECTION_OPTIONS = (
    *("url", "username", "password", "cluster"),
    *(*_SENTINEL_OPTIONS, *_REPLICA_OPTIONS, *CLIENT_OPTIONS),
)


@dataclass(frozen=True, repr=False)
class Sentinels:
    """Who knows which server is the master of that name: host and port of each. A repr shows no
    secret."""

    nodes: tuple[tuple[str, int], ...]
    master: str
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.nodes)
        return f"{self.master} of the Sentinels {hosts}"


@dataclass(frozen=True, repr=False)
class ConnectionOptions:
    """An address and how to log in there. Its repr shows no secret.

    client: further keyword arguments for redis-py, as sorted pairs. sentinels: who names the server
    in place of the url's host. min_replicas: how many replicas must confirm what is written, within
    replica_timeout_ms; 0: none is waited for.
    """

    url: str
    username: str | None = None
    password: str | None = None
    cluster: bool = False
    client: tuple[tuple[str, Any], ...] = ()
    sentinels: Sentinels | None = None
    min_replicas: int = 0
    replica_timeout_ms: int = DEFAULT_REPLICA_TIMEOUT_MS

    @property
    def patience_s(self) -> float:
        """How long a broken connection is tried again: a failover is waited for."""
        return FAILOVER_PATIENCE_S if self.cluster or self.sentinels else PATIENCE_S

    @property
    def address(self) -> str:
        """The address without what it may hold of credentials."""
        if self.sentinels is not None:
            return repr(self.sentinels)
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix://{parts.path}"
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or '127.0.0.1'}{port}{parts.path}"

    def __repr__(self) -> str:
        return f"ConnectionOptions({self.address}, cluster={self.cluster})"


def parse_connection(options: Mapping[str, str]) -> ConnectionOptions:
    """Reads the options behind ``redis.`` (``url``, ``password``, ...), names in any case.

    Without an url, the environment variable RMQ_REDIS_URL names it, else the local server's
    first database is taken. Raises InvalidOption; its message never shows an url.
    """
    known = {name.lower(): name for name in CONNECTION_OPTIONS}
    given: dict[str, str] = {}
    for name, value in options.items():
        canonical = known.get(name.lower().replace("_", ""))
        if canonical is None:
            accepted = ", ".join(f"redis.{option}" for option in CONNECTION_OPTIONS)
            raise InvalidOption(f"The option redis.{name} is unknown. Accepted: {accepted}.")
        given[canonical] = value
    client: dict[str, Any] = {
        keyword: parse(f"redis.{name}", given[name])
        for name, (keyword, parse) in CLIENT_OPTIONS.items()
        if name in given
    }
    cluster = _flag("redis.cluster", given.get("cluster", "false"))
    sentinels = _sentinels(given, cluster)
    replicas = _replicas(given.get("minReplicas", "0"))
    url = given.get("url") or (None if sentinels else os.environ.get(URL_VARIABLE))
    return ConnectionOptions(
        url=_checked_url(url or DEFAULT_URL),
        username=given.get("username"),
        password=given.get("password"),
        cluster=cluster,
        client=tuple(sorted(client.items())),
        sentinels=sentinels,
        min_replicas=replicas,
        replica_timeout_ms=(
            _replica_timeout(
                given.get("replicaTimeout"), client.get("socket_timeout", SOCKET_TIMEOUT_S)
            )
            if replicas or "replicaTimeout" in given
            else DEFAULT_REPLICA_TIMEOUT_MS
        ),
    )


def _replicas(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > MOST_REPLICAS:
        raise InvalidOption(
            f"redis.minReplicas={text!r} is not accepted. Accepted: a whole number, 0 to "
            f"{MOST_REPLICAS}."
        )
    return int(text)


def _replica_timeout(text: str | None, socket_timeout_s: float) -> int:
    value = DEFAULT_REPLICA_TIMEOUT_MS
    if text is not None:
        value = parse_duration_ms("redis.replicaTimeout", text)
        if not 1 <= value <= LONGEST_REPLICA_TIMEOUT_MS:
            raise InvalidOption(
                f"redis.replicaTimeout={text!r} is not accepted. Accepted: 1ms to "
                f"{LONGEST_REPLICA_TIMEOUT_MS // 1000}s."
            )
    if value >= 1000 * socket_timeout_s:
        raise InvalidOption(
            f"redis.socketTimeout must be longer than redis.replicaTimeout, which is {value} ms: "
            "else a reply that waits for replicas is given up before it comes."
        )
    return value


def _sentinels(given: Mapping[str, str], cluster: bool) -> Sentinels | None:
    """Reads the options of Sentinel; None where there is none. Raises InvalidOption."""
    hosts = given.get("sentinels")
    if hosts is None:
        alone = [name for name in _SENTINEL_OPTIONS if name in given]
        if alone:
            raise InvalidOption(
                f"redis.{alone[0]} needs redis.sentinels: host:port of each Sentinel, by commas."
            )
        return None
    if not given.get("sentinelMaster"):
        raise InvalidOption(
            "redis.sentinels needs redis.sentinelMaster: the name under which the Sentinels watch "
            "the master, such as mymaster."
        )
    if "url" in given or cluster:
        other = "redis.url" if "url" in given else "redis.cluster=true"
        raise InvalidOption(
            f"redis.sentinels does not go with {other}. Leave one of them out: the Sentinels name "
            "the server, whose database 0 is used."
        )
    return Sentinels(
        nodes=tuple(_sentinel(host.strip()) for host in hosts.split(",")),
        master=given["sentinelMaster"],
        username=given.get("sentinelUsername"),
        password=given.get("sentinelPassword"),
    )


def _sentinel(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or DEFAULT_SENTINEL_PORT
    except ValueError:
        host, port = None, 0
    if not host or "@" in text or "/" in text:
        raise InvalidOption(
            "redis.sentinels is not accepted (it is not shown, it may hold a password). Accepted: "
            "host:port of each Sentinel, by commas; redis.sentinelUsername and "
            "redis.sentinelPassword log in there."
        )
    return host, port


def _checked_url(url: str) -> str:
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
        raise InvalidOption(
            "redis.url is no address of Redis (it is not shown, it may hold a password). Accepted: "
            "redis://host:port/database, rediss://host:port/database, unix:///path/of/socket?db=0. "
            "Special characters of a user or password are written %23 for #, %3F for ?, %40 for @, "
            "%2F for /; or give redis.username and redis.password."
        )
    return url


def _is_number(database: str) -> bool:
    """Whether it names a database; redis-py would take the first one for any other text."""
    return not database or database.isdecimal()


def new_client(options: ConnectionOptions) -> Any:
    """A redis-py client that repeats nothing by itself.

    A script whose reply is lost may have run: only its caller knows whether it may run again.
    That of a cluster connects at once, so this may raise whatever a command may.
    """
    arguments: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        **dict(options.client),
    }
    if "ssl_certfile" in arguments:
        _check_certificate(arguments)
    if options.url.startswith("unix"):
        del arguments["socket_keepalive"], arguments["socket_connect_timeout"]
    if options.username is not None:
        arguments["username"] = options.username
    if options.password is not None:
        arguments["password"] = options.password
    try:
        if options.sentinels is not None:
            return _client_of_sentinels(options.sentinels, arguments)
        if options.cluster:
            _check_for_cluster(options.url)
            return RedisCluster.from_url(options.url, **arguments)
        return redis.Redis.from_url(options.url, **arguments)
    except InvalidOption:
        raise
    except (TypeError, ValueError) as error:
        raise not_accepted(error) from None


def _client_of_sentinels(sentinels: Sentinels, arguments: dict[str, Any]) -> Any:
    """A client that asks the Sentinels for the master whenever it connects.

    With an option of TLS, master and Sentinels alike are reached through TLS.
    """
    tls = {name: value for name, value in arguments.items() if name.startswith("ssl_")}
    if tls:
        arguments["ssl"] = tls["ssl"] = True
    login = {"username": sentinels.username, "password": sentinels.password}
    asked = {name: arguments[name] for name in ("socket_timeout", "socket_connect_timeout")}
    # The next Sentinel is asked at once; who calls repeats it all within its own time.
    to_sentinels = {**asked, **tls, **login, "retry": Retry(NoBackoff(), 0)}
    known = Sentinel(sentinels.nodes, sentinel_kwargs=to_sentinels, **arguments)  # type: ignore[no-untyped-call]
    return known.master_for(sentinels.master)  # type: ignore[no-untyped-call]


def _check_certificate(arguments: dict[str, Any]) -> None:
    """Raises InvalidOption for a certificate that could be shown to no server.

    Without a password an encrypted key would ask for one on the terminal, which nobody sees.
    """
    arguments.setdefault("ssl_password", "")
    files = arguments["ssl_certfile"], arguments.get("ssl_keyfile")
    try:
        ssl.create_default_context().load_cert_chain(*files, password=arguments["ssl_password"])
    except (ssl.SSLError, ValueError) as error:
        raise InvalidOption(
            f"redis.sslCertfile={files[0]!r} with redis.sslKeyfile={files[1]!r} cannot be used "
            f"({error}). Accepted: PEM files of a certificate and of its key; redis.sslPassword "
            "opens an encrypted one."
        ) from None


def not_accepted(error: Exception) -> InvalidOption:
    """What says that redis-py stumbled over the address or an option; it shows no value."""
    return InvalidOption(
        f"redis.url or an option of the client is not accepted ({type(error).__name__}; the url is "
        "not shown, it may hold a password). Check the parameters behind its '?'; the options "
        "redis.ssl* need rediss://."
    )


def _check_for_cluster(url: str) -> None:
    address = parse_url(url)  # type: ignore[no-untyped-call]
    if "path" in address or address.get("db", 0) != 0:
        raise InvalidOption(
            "redis.cluster=true does not go with this redis.url. Accepted: redis:// or rediss://, "
            "with database 0 or none."
        )
