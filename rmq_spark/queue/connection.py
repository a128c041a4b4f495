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

from rmq_spark.queue.durations import parse_duration_ms
from rmq_spark.queue.errors import InvalidOption

URL_VARIABLE = "RMQ_REDIS_URL"
DEFAULT_URL = "redis://127.0.0.1:6379/0"
CONNECT_TIMEOUT_S = 5.0
# Longer than the longest script may block Redis; a reply that takes longer is lost.
SOCKET_TIMEOUT_S = 15.0
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
CONNECTION_OPTIONS = ("url", "username", "password", "cluster", *CLIENT_OPTIONS)


@dataclass(frozen=True, repr=False)
class ConnectionOptions:
    """An address and how to log in there. Its repr shows no secret.

    client: further keyword arguments for redis-py, as sorted pairs.
    """

    url: str
    username: str | None = None
    password: str | None = None
    cluster: bool = False
    client: tuple[tuple[str, Any], ...] = ()

    @property
    def address(self) -> str:
        """The address without what it may hold of credentials."""
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
    client = {
        keyword: parse(f"redis.{name}", given[name])
        for name, (keyword, parse) in CLIENT_OPTIONS.items()
        if name in given
    }
    return ConnectionOptions(
        url=_checked_url(given.get("url") or os.environ.get(URL_VARIABLE) or DEFAULT_URL),
        username=given.get("username"),
        password=given.get("password"),
        cluster=_flag("redis.cluster", given.get("cluster", "false")),
        client=tuple(sorted(client.items())),
    )


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
        if options.cluster:
            _check_for_cluster(options.url)
            return RedisCluster.from_url(options.url, **arguments)
        return redis.Redis.from_url(options.url, **arguments)
    except InvalidOption:
        raise
    except (TypeError, ValueError) as error:
        raise not_accepted(error) from None


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
