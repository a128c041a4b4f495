"""The connection to ZooKeeper: its options, read without kazoo."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.errors import InvalidOption
from rmq_spark.options.ensemble_options import (
    ENSEMBLE,
    HOSTS,
    OF_TLS,
    PASSWORD,
    ROOT,
    SESSION_TIMEOUT,
    SSL,
    SSL_CA_CERTS,
    SSL_CERTFILE,
    SSL_KEYFILE,
    SSL_PASSWORD,
    USERNAME,
    ZOOKEEPER,
)
from rmq_spark.options.option import Values


@dataclass(frozen=True)
class EnsembleOptions:
    """A ZooKeeper ensemble, and the login. Its repr shows no secret.

    hosts: host:port, separated by commas, with an optional path (chroot) after the last. root: the
    path of all ZooKeeper nodes of rmq-spark, below the chroot. session_timeout_ms: others get the
    slots of a member that is out of touch for longer.
    """

    hosts: str
    root: str = ROOT.default_value
    session_timeout_ms: int = SESSION_TIMEOUT.default_value
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: bool = False
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)

    @property
    def servers(self) -> str:
        """The hosts without the chroot."""
        return self.hosts.partition("/")[0]

    @property
    def path(self) -> str:
        """The path of all ZooKeeper nodes of rmq-spark, with the chroot. Created if missing."""
        _, slash, chroot = self.hosts.partition("/")
        return f"{slash}{chroot}{self.root}"


def parse_ensemble(given: Mapping[str, str]) -> EnsembleOptions | None:
    """Parse options without their prefix ``zookeeper.`` (``hosts``, ...), names in any case.

    Returns None if there are none. Raises InvalidOption.
    """
    return ensemble_of(ENSEMBLE.parse({f"{ZOOKEEPER}{name}": v for name, v in given.items()}))


def ensemble_of(values: Values) -> EnsembleOptions | None:
    """Return the ensemble that the values of options describe; None if there are none.

    Raises InvalidOption for options that contradict each other.
    """
    hosts = values.get(HOSTS)
    if hosts is None:
        if any(option in values for option in ENSEMBLE.options):
            raise InvalidOption(
                "The option zookeeper.hosts is missing, which the other zookeeper options need. "
                f"Accepted: {HOSTS.parser.accepted_plain}."
            )
        return None
    if bool(values.get(USERNAME)) != bool(values.get(PASSWORD)):
        raise InvalidOption(
            "One of zookeeper.username and zookeeper.password is missing or empty. Set both or "
            "neither."
        )
    needless = [option.name for option in OF_TLS if option in values]
    if needless and not values[SSL]:
        raise InvalidOption(
            f"{needless[0]} needs zookeeper.ssl=true. Set it, or leave {needless[0]} out."
        )
    return EnsembleOptions(
        hosts=hosts,
        root=values[ROOT],
        session_timeout_ms=values[SESSION_TIMEOUT],
        username=values.get(USERNAME) or None,
        password=values.get(PASSWORD),
        ssl=values[SSL],
        ssl_ca_certs=values.get(SSL_CA_CERTS),
        ssl_certfile=values.get(SSL_CERTFILE),
        ssl_keyfile=values.get(SSL_KEYFILE),
        ssl_password=values.get(SSL_PASSWORD),
    )
