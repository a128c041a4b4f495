"""Where Redis is and how it is reached: options to a redis-py client."""

import os
import re
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
from rmq_spark.options.connection_options import (
    CLIENT,
    CLUSTER,
    CONNECTION,
    DEFAULT_URL,
    MIN_REPLICAS,
    PASSWORD,
    REDIS,
    REPLICA_TIMEOUT,
    SENTINEL_MASTER,
    SENTINEL_PASSWORD,
    SENTINEL_USERNAME,
    SENTINELS,
    SOCKET_TIMEOUT,
    URL,
    URL_VARIABLE,
    USERNAME,
)
from rmq_spark.options.option import Option, Values

# How long a broken connection is tried again, unless a shorter lease asks for less.
PATIENCE_S = 10.0
# Where a replica takes over: a cluster's nodes notice after cluster-node-timeout, by default 15 s.
FAILOVER_PATIENCE_S = 25.0


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
    username: str | None
    password: str | None
    cluster: bool
    client: tuple[tuple[str, Any], ...]
    sentinels: Sentinels | None
    min_replicas: int
    replica_timeout_ms: int

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


def parse_connection(given: Mapping[str, str]) -> ConnectionOptions:
    """Read the options behind ``redis.`` (``url``, ``password``, ...), names in any case.

    Raises InvalidOption; its message never shows an url.
    """
    return connection_of(CONNECTION.parse({f"{REDIS}{name}": v for name, v in given.items()}))


def connection_of(values: Values) -> ConnectionOptions:
    """Return the connection that the values of a table of options describe.

    Without an url, the environment variable RMQ_REDIS_URL names the server, else it is the local
    server's first database. Raises InvalidOption for options that contradict each other.
    """
    sentinels = _sentinels(values)
    of_environment = None if sentinels else os.environ.get(URL_VARIABLE)
    client = {_keyword(option): values.get(option) for option in CLIENT}
    _check_replica_timeout(values)
    return ConnectionOptions(
        url=values.get(URL) or URL.parse(of_environment or DEFAULT_URL),
        username=values.get(USERNAME),
        password=values.get(PASSWORD),
        cluster=values[CLUSTER],
        client=tuple(sorted((k, value) for k, value in client.items() if value is not None)),
        sentinels=sentinels,
        min_replicas=values[MIN_REPLICAS],
        replica_timeout_ms=values[REPLICA_TIMEOUT],
    )


def _keyword(option: Option[Any]) -> str:
    """How redis-py names an option: redis.socketTimeout is socket_timeout."""
    name = option.name.removeprefix(REDIS)
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _check_replica_timeout(values: Values) -> None:
    if not values[MIN_REPLICAS] and REPLICA_TIMEOUT not in values:
        return
    timeout_ms = values[REPLICA_TIMEOUT]
    if timeout_ms >= 1000 * values[SOCKET_TIMEOUT]:
        raise InvalidOption(
            f"redis.socketTimeout must be longer than redis.replicaTimeout, which is {timeout_ms} "
            "ms: otherwise the connection is given up before the replicas have confirmed."
        )


def _sentinels(values: Values) -> Sentinels | None:
    """Return the Sentinels, or None where there are none. Raises InvalidOption."""
    nodes = values.get(SENTINELS)
    master = values.get(SENTINEL_MASTER)
    if nodes is None:
        for option in (SENTINEL_MASTER, SENTINEL_USERNAME, SENTINEL_PASSWORD):
            if option in values:
                raise InvalidOption(
                    f"{option.name} needs redis.sentinels: host:port of each Sentinel, by commas."
                )
        return None
    if not master:
        raise InvalidOption(
            "redis.sentinels needs redis.sentinelMaster: the name under which the Sentinels watch "
            "the master, such as mymaster."
        )
    if URL in values or values[CLUSTER]:
        other = "redis.url" if URL in values else "redis.cluster=true"
        raise InvalidOption(
            f"redis.sentinels does not go with {other}. Leave one of them out: the Sentinels name "
            "the server, whose database 0 is used."
        )
    return Sentinels(nodes, master, values.get(SENTINEL_USERNAME), values.get(SENTINEL_PASSWORD))


def new_client(options: ConnectionOptions) -> Any:
    """A redis-py client that repeats nothing by itself.

    A script whose reply is lost may have run: only its caller knows whether it may run again.
    That of a cluster connects at once, so this may raise whatever a command may.
    """
    arguments: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
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
