"""The options of ZooKeeper: ``zookeeper.*``."""

import re

from rmq_spark.options.option import Option, OptionTable
from rmq_spark.topics.parsers import FILE, FLAG, TEXT, NotAccepted, Parser, checked_text, duration

ZOOKEEPER = "zookeeper."
# ZooKeeper's own tick is 2 s, and it accepts 2 to 20 ticks.
SHORTEST_SESSION_MS = 1_000
LONGEST_SESSION_MS = 3_600_000
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_PATH = re.compile(r"(/[^/\x00-\x1f\x7f]+)+")


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


HOSTS = Option(
    "zookeeper.hosts",
    Parser(
        _hosts,
        "host:port, separated by commas, with an optional path after the last host: "
        "`zk1:2181,zk2:2181/queues`",
    ),
    "Share the slots with other queries, through this ZooKeeper",
    see="ownership.md",
)
ROOT = Option(
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
USERNAME = Option("zookeeper.username", TEXT, "User (digest). Required with the password")
PASSWORD = Option("zookeeper.password", TEXT, "Password of the user", is_secret=True)
SSL = Option(
    "zookeeper.ssl", FLAG, "Whether to use TLS, which verifies the server's name", default="false"
)
SSL_CA_CERTS = Option(
    "zookeeper.sslCaCerts",
    FILE,
    "Certificate authorities to trust",
    otherwise="those of the system",
)
SSL_CERTFILE = Option("zookeeper.sslCertfile", FILE, "Certificate of the client")
SSL_KEYFILE = Option("zookeeper.sslKeyfile", FILE, "Key of that certificate")
SSL_PASSWORD = Option("zookeeper.sslPassword", TEXT, "Password of the key", is_secret=True)
OF_TLS = (SSL_CA_CERTS, SSL_CERTFILE, SSL_KEYFILE, SSL_PASSWORD)
ENSEMBLE = OptionTable(
    "ZooKeeper", (HOSTS, ROOT, SESSION_TIMEOUT, USERNAME, PASSWORD, SSL, *OF_TLS)
)
