"""Where ZooKeeper is and how one logs in there: its options, without kazoo."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.durations import parse_duration_ms

DEFAULT_ROOT = "/rmq"
# ZooKeeper's own tick is 2 s, and it accepts 2 to 20 ticks.
DEFAULT_SESSION_TIMEOUT_MS = 10_000
SHORTEST_SESSION_MS = 1_000
LONGEST_SESSION_MS = 3_600_000
FILES = ("sslCaCerts", "sslCertfile", "sslKeyfile")
ENSEMBLE_OPTIONS = (
    *("hosts", "root", "sessionTimeout", "username", "password", "ssl", *FILES, "sslPassword"),
)
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_ROOT = re.compile(r"(/[^/\x00-\x1f\x7f]+)+")


@dataclass(frozen=True)
class EnsembleOptions:
    """A ZooKeeper ensemble, and how to log in there. Its repr shows no secret.

    hosts: host:port by commas, with an optional path behind the last. root: below it, or below that
    path and it, lie our nodes.
    session_timeout_ms: after so long without a word from us our slots are given to others.
    """

    hosts: str
    root: str = DEFAULT_ROOT
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: bool = False
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)

    @property
    def servers(self) -> str:
        """The hosts without the path."""
        return self.hosts.partition("/")[0]

    @property
    def path(self) -> str:
        """Where our nodes lie, the path behind the hosts included. It is made if need be."""
        _, slash, chroot = self.hosts.partition("/")
        return f"{slash}{chroot}{self.root}"


def parse_ensemble(options: Mapping[str, str]) -> EnsembleOptions | None:
    """Reads the options behind ``zookeeper.`` (``hosts``, ...), names in any case; None for none.

    Raises InvalidOption.
    """
    known = {name.lower(): name for name in ENSEMBLE_OPTIONS}
    unknown = sorted(set(map(str.lower, options)) - set(known))
    if unknown:
        accepted = ", ".join(f"zookeeper.{name}" for name in ENSEMBLE_OPTIONS)
        raise InvalidOption(f"The option zookeeper.{unknown[0]} is unknown. Accepted: {accepted}.")
    given = {known[name.lower()]: value for name, value in options.items()}
    if not given:
        return None
    if not given.get("hosts", "").strip():
        raise InvalidOption(
            "The option zookeeper.hosts is missing beside other zookeeper options. Accepted: "
            "host:port by commas, with an optional path behind the last."
        )
    if bool(given.get("username")) != bool(given.get("password")):
        raise InvalidOption(
            "zookeeper.username and zookeeper.password go together; one is missing or empty."
        )
    return EnsembleOptions(
        hosts=_hosts(given["hosts"]),
        root=_root(given.get("root", DEFAULT_ROOT)),
        session_timeout_ms=_session_timeout(given.get("sessionTimeout")),
        username=given.get("username") or None,
        password=given.get("password"),
        ssl=_ssl(given),
        ssl_ca_certs=given.get("sslCaCerts"),
        ssl_certfile=given.get("sslCertfile"),
        ssl_keyfile=given.get("sslKeyfile"),
        ssl_password=given.get("sslPassword"),
    )


def _hosts(text: str) -> str:
    hosts, slash, chroot = text.strip().partition("/")
    servers = [_SERVER.fullmatch(server) for server in hosts.split(",")]
    valid = all(server and 0 < int(server["port"] or 1) < 65_536 for server in servers)
    if not valid or (slash and ("," in chroot or not _is_path(f"/{chroot}"))):
        raise InvalidOption(
            f"zookeeper.hosts={text!r} is not accepted. Accepted: host:port by commas, with an "
            "optional path behind the last, such as zk1:2181,zk2:2181,zk3:2181/queues."
        )
    return text.strip()


def _root(text: str) -> str:
    if not _is_path(text):
        raise InvalidOption(
            f"zookeeper.root={text!r} is not accepted. Accepted: a path such as {DEFAULT_ROOT}."
        )
    return text


def _is_path(text: str) -> bool:
    return bool(_ROOT.fullmatch(text)) and not set(text.split("/")) & {".", ".."}


def _session_timeout(text: str | None) -> int:
    if text is None:
        return DEFAULT_SESSION_TIMEOUT_MS
    timeout_ms = parse_duration_ms("zookeeper.sessionTimeout", text)
    if not SHORTEST_SESSION_MS <= timeout_ms <= LONGEST_SESSION_MS:
        raise InvalidOption(
            f"zookeeper.sessionTimeout={text!r} is not accepted. Accepted: 1s to 1h; ZooKeeper "
            "itself takes 2 to 20 of its ticks, by default 4s to 40s, and uses the nearest."
        )
    return timeout_ms


def _ssl(given: Mapping[str, str]) -> bool:
    text = given.get("ssl", "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"zookeeper.ssl={text!r} is not accepted. Accepted: true or false.")
    for name in (*FILES, "sslPassword"):
        path = given.get(name)
        if path is None:
            continue
        if text == "false":
            raise InvalidOption(f"zookeeper.{name} needs zookeeper.ssl=true.")
        if name in FILES and not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise InvalidOption(
                f"zookeeper.{name}={path!r} is not accepted. Accepted: a file that is there and "
                "can be read."
            )
    return text == "true"
