"""The connection to Redis: its options, and the redis-py client that they describe."""

import functools
import importlib
import ipaddress
import os
import re
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.credentials import CredentialProvider
from redis.event import AfterPooledConnectionsInstantiationEvent, ClientType, EventDispatcher
from redis.retry import Retry
from redis.sentinel import Sentinel

from rmq_spark.errors import InvalidOption
from rmq_spark.options import (
    CLIENT,
    CLUSTER,
    CONNECTION,
    CREDENTIAL_PROVIDER,
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
    in_url,
)
from rmq_spark.topics.parsing import Option, Values

# For SO_LINGER: on, for 0 seconds. A close then resets the connection.
_DROP = struct.pack("ii", 1, 0)
# The sockets of this process. A fork closes its copies: only the last close resets a connection.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
# Retry a broken connection for so long, unless a lease is shorter.
PATIENCE_S = 10.0
# Before a connection that had nothing to do for so long is used, Redis must answer a PING there: a
# router or load balancer may have dropped it without a word. A Redis that is busy for longer than
# that answers on the new connection.
IDLE_S, SILENCE_S = 5.0, 3.0
# With failover, retry for longer: cluster nodes notice a failure after cluster-node-timeout, which
# is 15 s by default.
FAILOVER_PATIENCE_S = 25.0
# redis-py's own limit is 100 connections a program. Each reader that waits has one, and each thread
# that asks. Only the server's maxclients shall be the limit.
_MOST_CONNECTIONS = 2**31
# Parameters of a URL by which redis-py turns bytes into texts, or texts into other bytes.
_CODED = {"decode_responses", "encoding", "encoding_errors"}
# Those for which redis-py needs an object: with a text it fails somewhere in the first connection.
_OBJECTS = {
    *("cache", "cache_config", "command_packer", "credential_provider", "event_dispatcher"),
    *("maint_notifications_config", "redis_connect_func", "retry", "socket_keepalive_options"),
}
# Those of which redis-py takes values with which no connection works: a pattern, and what it is.
_ABOVE_0 = r"(?=.*[1-9])\d*\.?\d*", "a number above 0"
_VALUES = {
    "socket_timeout": _ABOVE_0,
    "socket_connect_timeout": _ABOVE_0,
    "socket_read_size": _ABOVE_0,
    "protocol": ("[23]", "2 or 3"),
    "ssl_cert_reqs": ("none|optional|required", "none, optional or required"),
    "client_name": (r"[!-~]+", "a text without spaces"),
}
# Options of redis-cli by redis-py's name of the same.
_OF_REDIS_CLI = {
    "ssl_ca_certs": "--cacert",
    "ssl_certfile": "--cert",
    "ssl_keyfile": "--key",
}


def on_connect(connection: Any) -> None:
    drop_unsent(connection)
    connection.on_connect()


def drop_unsent(connection: Any) -> None:
    """Set a new connection of redis-py up, before or after its login."""
    _drop_at_close(connection._sock)
    _sockets.add(connection._sock)


async def on_async_connect(connection: Any) -> None:
    writer = connection._writer
    _drop_at_close(writer.get_extra_info("socket"))
    writer.close = writer.transport.abort  # close would send what waits in the program, too
    await connection.on_connect()


def _drop_at_close(of: Any) -> None:
    if of.family != socket.AF_UNIX:  # nothing can be lost on the way, and so come late
        of.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)


def _close_copies() -> None:
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_copies)


@dataclass(frozen=True, repr=False)
class Sentinels:
    """The Sentinels of a master: host and port of each, and the login. Its repr shows no secret."""

    nodes: tuple[tuple[str, int], ...]
    master: str
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"{self.master} of the Sentinels {self.hosts}"

    @property
    def hosts(self) -> str:
        return ",".join(f"{in_url(host)}:{port}" for host, port in self.nodes)


@dataclass(frozen=True, repr=False)
class ConnectionOptions:
    """The address of Redis, and the login. Its repr shows no secret.

    provider: of the login, instead of username and password: redis-py's object, or the function
    that returns it, as ``module:function``. client: further keyword arguments for redis-py, as
    sorted pairs. sentinels: the Sentinels that name the server, instead of the url. min_replicas:
    how many replicas must confirm each write within replica_timeout_ms; 0: wait for none. prefix:
    what the user writes before the names of these options, for errors: ``redis.``, or nothing for
    the keywords of connect.
    """

    url: str
    username: str | None
    password: str | None
    cluster: bool
    client: tuple[tuple[str, Any], ...]
    sentinels: Sentinels | None
    min_replicas: int
    replica_timeout_ms: int
    provider: CredentialProvider | str | None = None
    prefix: str = REDIS

    @property
    def patience_s(self) -> float:
        """How long to retry a broken connection, in s: long enough for a failover."""
        return FAILOVER_PATIENCE_S if self.cluster or self.sentinels else PATIENCE_S

    @property
    def address(self) -> str:
        """The address without credentials."""
        if self.sentinels is not None:
            return repr(self.sentinels)
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix://{parts.path}"
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{in_url(parts.hostname or '127.0.0.1')}{port}{parts.path}"

    @property
    def login_source(self) -> str:
        """What gave the user and the password, for errors."""
        if self.provider is not None:
            return CREDENTIAL_PROVIDER.name.replace(REDIS, self.prefix)
        are_given = (self.username, self.password) != (None, None)
        in_address = "@" in urlsplit(self.url).netloc or not are_given
        sources = []
        if in_address and self.sentinels is None:
            place = URL_VARIABLE if self.url == os.environ.get(URL_VARIABLE) else URL.name
            sources.append(f"the user and the password in {place}")
        if are_given or not sources:
            sources.append(f"{USERNAME.name} and {PASSWORD.name}")
        return ", and ".join(sources).replace(REDIS, self.prefix)

    @property
    def command_options(self) -> tuple[str, ...]:
        """The options with which rmq reaches this Redis: no credentials, no defaults."""
        if self.sentinels is not None:
            master = f"{SENTINEL_MASTER.name}={self.sentinels.master}"
            return "-o", f"{SENTINELS.name}={self.sentinels.hosts}", "-o", master
        cluster = ("--redis-cluster",) if self.cluster else ()
        if self.url == (os.environ.get(URL_VARIABLE) or DEFAULT_URL):
            return cluster
        database = parse_qs(urlsplit(self.url).query).get("db")
        url = f"{self.address}?db={database[0]}" if database else self.address
        return "--redis-url", url, *cluster

    @property
    def redis_cli_options(self) -> tuple[str, ...]:
        """The options with which redis-cli trusts this Redis, and Redis trusts redis-cli."""
        of_url = {name: of[0] for name, of in parse_qs(urlsplit(self.url).query).items()}
        given = {**of_url, **dict(self.client)}
        files = {name: given[name] for name in _OF_REDIS_CLI if given.get(name)}
        options = [word for name, file in files.items() for word in (_OF_REDIS_CLI[name], file)]
        if given.get("ssl_cert_reqs") == "none":
            options.append("--insecure")
        return tuple(options)

    @property
    def user(self) -> str | None:
        """The user to log in as; None for Redis' default user."""
        return self.username or urlsplit(self.url).username

    def at(self, node: str | None) -> "ConnectionOptions":
        """Return the options for one node of the cluster, or for the master of the Sentinels.

        node: its host and port; None for the server itself, which is no such one.
        """
        if node is None:
            return self
        host, _, port = node.rpartition(":")
        parts = urlsplit(self.url)
        login, at, _ = parts.netloc.rpartition("@")
        of_tls = any(name.startswith("ssl_") for name, _ in self.client)
        scheme = "rediss" if self.sentinels is not None and of_tls else parts.scheme
        url = parts._replace(scheme=scheme, netloc=f"{login}{at}{in_url(host)}:{port}")
        return replace(self, url=url.geturl(), cluster=False, sentinels=None)

    @property
    def without_login(self) -> "ConnectionOptions":
        """The same server, for a plain client that does not log in."""
        parts = urlsplit(self.url)
        query = [
            (name, value)
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
            if name not in ("username", "password")
        ]
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(query))
        return replace(
            self, url=url.geturl(), username=None, password=None, provider=None, cluster=False
        )

    def __repr__(self) -> str:
        return f"ConnectionOptions({self.address}, cluster={self.cluster})"


def parse_connection(given: Mapping[str, str]) -> ConnectionOptions:
    """Parse options without ``redis.``, in any case. Errors name them as given, and show no URL."""
    options = {f"{REDIS}{name}": text for name, text in given.items()}
    found = ((CONNECTION.find(name), name) for name in options)
    typed = {option.name: name for option, name in found if option}
    values = CONNECTION.parse(options, lambda name: typed.get(name, name).removeprefix(REDIS))
    return replace(connection_of(values), prefix="")


def connection_of(values: Values) -> ConnectionOptions:
    """Return the connection that the values of options describe.

    Without a URL, the environment variable RMQ_REDIS_URL names the server, or else it is database 0
    of the local server.
    """
    sentinels = _sentinels(values)
    of_environment = None if sentinels else os.environ.get(URL_VARIABLE)
    client = {_keyword(option): values.get(option) for option in CLIENT}
    _check_replica_timeout(values)
    return ConnectionOptions(
        url=values.get(URL) or URL.called(URL_VARIABLE).parse(of_environment or DEFAULT_URL),
        username=values.get(USERNAME),
        password=values.get(PASSWORD),
        cluster=values[CLUSTER],
        client=tuple(sorted((k, value) for k, value in client.items() if value is not None)),
        sentinels=sentinels,
        min_replicas=values[MIN_REPLICAS],
        replica_timeout_ms=values[REPLICA_TIMEOUT],
        provider=values.get(CREDENTIAL_PROVIDER),
    )


def _keyword(option: Option[Any]) -> str:
    """Return redis-py's name of an option: socket_timeout for redis.socketTimeout."""
    name = option.name.removeprefix(REDIS)
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _check_replica_timeout(values: Values) -> None:
    if not values[MIN_REPLICAS] and REPLICA_TIMEOUT not in values:
        return
    timeout_ms = values[REPLICA_TIMEOUT]
    if timeout_ms >= 1000 * values[SOCKET_TIMEOUT]:
        raise values.refusal(
            f"redis.socketTimeout={values[SOCKET_TIMEOUT]:g}s is not accepted with "
            f"redis.replicaTimeout={timeout_ms}ms: the connection would time out before the "
            "replicas confirm. Accepted: a redis.socketTimeout longer than redis.replicaTimeout."
        )


def _sentinels(values: Values) -> Sentinels | None:
    nodes = values.get(SENTINELS)
    master = values.get(SENTINEL_MASTER)
    if nodes is None:
        for option in (SENTINEL_MASTER, SENTINEL_USERNAME, SENTINEL_PASSWORD):
            if option in values:
                raise values.refusal(
                    f"{option.name} needs redis.sentinels. Set it to host:port of each Sentinel, "
                    "separated by commas."
                )
        return None
    if not master:
        raise values.refusal(
            "redis.sentinels needs redis.sentinelMaster. Set it to the name under which the "
            "Sentinels watch the master, such as mymaster."
        )
    if URL in values or values[CLUSTER]:
        other = "redis.url" if URL in values else "redis.cluster=true"
        raise values.refusal(
            f"redis.sentinels cannot be used with {other}. Leave one of them out. With Sentinels, "
            "rmq-spark uses database 0 of the server that they name."
        )
    return Sentinels(nodes, master, values.get(SENTINEL_USERNAME), values.get(SENTINEL_PASSWORD))


def new_client(options: ConnectionOptions) -> Any:
    """Make a redis-py client that never retries by itself.

    A script whose reply is lost may have run, and only its caller knows whether it may run again.
    A cluster's client connects at once, so this may raise any error that a command may. Raises
    InvalidOption.
    """
    arguments = {"retry": Retry(NoBackoff(), 0), **client_arguments(options)}
    # A cluster's client logs in by itself.
    arguments["redis_connect_func"] = drop_unsent if options.cluster else on_connect
    try:
        if options.sentinels is not None:
            client = client_of_sentinels(Sentinel, options.sentinels, arguments)
            return follow_tokens(client, ClientType.SYNC, options)
        if options.cluster:
            _check_for_cluster(options)
            return RedisCluster.from_url(options.url, **arguments)
        client = redis.Redis.from_url(options.url, **arguments)
        return follow_tokens(client, ClientType.SYNC, options)
    except InvalidOption:
        raise
    except (TypeError, ValueError) as error:
        raise not_accepted(error, options) from None


def answers_without_login(options: ConnectionOptions) -> bool:
    """Return whether the server answers a PING without a login, at an address not of loopback.

    False for a server that cannot be reached now.
    """
    client = new_client(options.without_login)
    connection = None
    try:
        connection = client.connection_pool.get_connection()
        connection.send_command("PING")
        connection.read_response()
        return not _is_loopback(connection._sock)
    except (redis.RedisError, OSError):
        return False
    finally:
        if connection is not None:
            client.connection_pool.release(connection)
        client.close()


def _is_loopback(connected: socket.socket) -> bool:
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    peer = ipaddress.ip_address(connected.getpeername()[0].partition("%")[0])
    mapped = getattr(peer, "ipv4_mapped", None)
    return (mapped or peer).is_loopback


def named_in(url: str) -> tuple[str, int]:
    parts: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    return parts.get("host", "localhost"), parts.get("port", 6379)


def renew_after_fork(client: Any) -> None:
    """Make a client usable in the copy of a process that was forked.

    Another thread may have held any lock of its parts at the fork; nobody would open it in the
    copy. The connections stay with the parent.
    """
    seen, parts = set[int](), [client]
    while parts:
        part = parts.pop()
        of_redis_py = type(part).__module__.startswith("redis.") and hasattr(part, "__dict__")
        if id(part) in seen or not of_redis_py:
            continue
        seen.add(id(part))
        renew_locks(part)
        if isinstance(part, redis.ConnectionPool):
            part.reset()
        for value in vars(part).values():
            several = value.values() if isinstance(value, dict) else value
            parts += several if isinstance(value, dict | list) else [value]


def renew_locks(of: object) -> None:
    for name, value in list(vars(of).items()):
        for make in (threading.Lock, threading.RLock):
            if isinstance(value, type(make())):
                setattr(of, name, make())


def client_arguments(options: ConnectionOptions) -> dict[str, Any]:
    _check_parameters(options)
    # With RESP3, each message comes in a list of its own, which triples the cost of reading.
    arguments: dict[str, Any] = {
        "protocol": 2,
        "health_check_interval": IDLE_S,
        "max_connections": _MOST_CONNECTIONS,
    }
    arguments |= dict(options.client)
    if "ssl_certfile" in arguments:
        _check_certificate(arguments, options.prefix)
    if options.url.startswith("unix"):
        del arguments["socket_keepalive"], arguments["socket_connect_timeout"]
    if options.username is not None:
        arguments["username"] = options.username
    if options.password is not None:
        arguments["password"] = options.password
    if options.provider is not None:
        _check_no_other_login(options)
        arguments["credential_provider"] = _provider_of(options)
    return arguments


def _check_parameters(options: ConnectionOptions) -> None:
    """Refuse parameters of a URL with which redis-py fails only later, or reads other texts."""
    given = parse_qs(urlsplit(options.url).query)
    why = ""
    for name, values in given.items():
        pattern, accepted = _VALUES.get(name, ("", ""))
        if name in _CODED:
            why = "with which redis-py would change keys or contents. Leave it out."
        elif name in _OBJECTS:
            why = "which redis-py does not take from a text. Leave it out."
        elif pattern and not re.fullmatch(pattern, values[0]):
            why = f"whose value is not accepted. Accepted: {accepted}."
        if why:
            raise InvalidOption(f"{options.prefix}url has the parameter {name}, {why}")


def _check_no_other_login(options: ConnectionOptions) -> None:
    in_url = urlsplit(options.url)
    if options.username or options.password or in_url.username or in_url.password:
        raise InvalidOption(
            f"{options.prefix}credentialProvider cannot be used with another user or password. "
            f"Leave out {options.prefix}username, {options.prefix}password and those in "
            f"{options.prefix}url or {URL_VARIABLE}."
        )


def _provider_of(options: ConnectionOptions) -> CredentialProvider:
    if isinstance(options.provider, CredentialProvider):
        return options.provider
    name = f"{options.prefix}credentialProvider={options.provider!r}"
    try:
        found = _called(options.provider, os.getpid())
    except Exception as error:  # its text may quote a secret
        raise InvalidOption(
            f"{name} cannot be called ({type(error).__name__}). Accepted: module:function, of a "
            "module that every process can import, on executors, too."
        ) from None
    if not isinstance(found, CredentialProvider):
        raise InvalidOption(
            f"{name} returned a {type(found).__name__}. Accepted: a "
            "redis.credentials.CredentialProvider."
        )
    return found


@functools.cache
def _called(function: str, process: int) -> Any:
    """Call a function once in each process: a provider may have threads, and tokens to share."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)()


def follow_tokens(client: Any, kind: ClientType, options: ConnectionOptions) -> Any:
    """Let a client that was made from a URL log in again with each token that comes.

    Only redis-py's clients of a cluster do so by themselves.
    """
    if options.provider is not None:
        made = AfterPooledConnectionsInstantiationEvent(
            [client.connection_pool], kind, _provider_of(options)
        )
        EventDispatcher().dispatch(made)
    return client


def client_of_sentinels(kind: Any, sentinels: Sentinels, arguments: dict[str, Any]) -> Any:
    """Make a client that asks the Sentinels for the master whenever it connects.

    kind: the Sentinel of redis-py, or that for asyncio. arguments: those of any client. With a TLS
    option, TLS is used for all of them alike.
    """
    tls = {name: value for name, value in arguments.items() if name.startswith("ssl_")}
    if tls:
        tls["ssl"] = True
    login = {"username": sentinels.username, "password": sentinels.password}
    asked = {name: arguments[name] for name in ("socket_timeout", "socket_connect_timeout")}
    # No retries: the client asks the next Sentinel at once, and the caller retries as a whole.
    to_sentinels = {**asked, **tls, **login, "retry": arguments["retry"]}
    known = kind(sentinels.nodes, sentinel_kwargs=to_sentinels, **{**arguments, **tls})
    return known.master_for(sentinels.master)


def _check_certificate(arguments: dict[str, Any], prefix: str) -> None:
    """Check that the client's certificate and key can be loaded. Raises InvalidOption.

    Sets an empty password: otherwise OpenSSL asks for that of an encrypted key on the terminal.
    """
    arguments.setdefault("ssl_password", "")
    files = arguments["ssl_certfile"], arguments.get("ssl_keyfile")
    try:
        ssl.create_default_context().load_cert_chain(*files, password=arguments["ssl_password"])
    except (ssl.SSLError, ValueError) as error:
        raise InvalidOption(
            f"{prefix}sslCertfile={files[0]!r} with {prefix}sslKeyfile={files[1]!r} cannot be used "
            f"({error}). Accepted: PEM files of a certificate and its key. For an encrypted key, "
            f"set {prefix}sslPassword."
        ) from None


def not_accepted(error: Exception, options: ConnectionOptions) -> InvalidOption:
    """Make the error for an address or option that redis-py refuses. It shows no value."""
    prefix = options.prefix
    return InvalidOption(
        f"{prefix}url or another option of the connection is not accepted by redis-py "
        f"({type(error).__name__}; its value is not shown: it may contain a password). Check the "
        f"parameters behind the '?' of {prefix}url. The options {prefix}ssl* need rediss://."
    )


def _check_for_cluster(options: ConnectionOptions) -> None:
    address = parse_url(options.url)  # type: ignore[no-untyped-call]
    if "path" in address or address.get("db", 0) != 0:
        raise InvalidOption(
            f"{options.prefix}cluster=true cannot be used with this {options.prefix}url. Accepted: "
            "redis:// or rediss://, with database 0 or none."
        )
