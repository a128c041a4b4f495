"""The ZooKeeper ensemble that options describe. Needs no kazoo, which a program may lack."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.errors import InvalidOption
from rmq_spark.options import (
    ENSEMBLE,
    SESSION_TIMEOUT,
    ZOOKEEPER,
    ZOOKEEPER_CA_CERTS,
    ZOOKEEPER_CERTFILE,
    ZOOKEEPER_HOSTS,
    ZOOKEEPER_KEY_PASSWORD,
    ZOOKEEPER_KEYFILE,
    ZOOKEEPER_PASSWORD,
    ZOOKEEPER_ROOT,
    ZOOKEEPER_SSL,
    ZOOKEEPER_TLS,
    ZOOKEEPER_USERNAME,
)
from rmq_spark.topics.parsing import Values


@dataclass(frozen=True)
class EnsembleOptions:
    """A ZooKeeper ensemble, and the login. Its repr shows no secret.

    hosts: host:port, separated by commas, with an optional path (chroot) after the last. root: the
    path of all ZooKeeper nodes of rmq-spark, below the chroot. session_timeout_ms: others get the
    slots of a member that is out of touch for longer.
    """

    hosts: str
    root: str = ZOOKEEPER_ROOT.default_value
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
        return self.hosts.partition("/")[0]

    @property
    def path(self) -> str:
        """The path of all ZooKeeper nodes of rmq-spark, with the chroot. Created if missing."""
        _, slash, chroot = self.hosts.partition("/")
        return f"{slash}{chroot}{self.root}"


def parse_ensemble(given: Mapping[str, str]) -> EnsembleOptions | None:
    """Parse options without their prefix ``zookeeper.``, in any case. None if there are none."""
    return ensemble_of(ENSEMBLE.parse({f"{ZOOKEEPER}{name}": v for name, v in given.items()}))


def ensemble_of(values: Values) -> EnsembleOptions | None:
    """Return the ensemble that the values of options describe; None if there are none."""
    hosts = values.get(ZOOKEEPER_HOSTS)
    if hosts is None:
        if any(option in values for option in ENSEMBLE.options):
            raise InvalidOption(
                "The option zookeeper.hosts is missing, which the other zookeeper options need. "
                f"Accepted: {ZOOKEEPER_HOSTS.parser.accepted_plain}."
            )
        return None
    if bool(values.get(ZOOKEEPER_USERNAME)) != bool(values.get(ZOOKEEPER_PASSWORD)):
        raise InvalidOption(
            "One of zookeeper.username and zookeeper.password is missing or empty. Set both or "
            "neither."
        )
    needless = [option.name for option in ZOOKEEPER_TLS if option in values]
    if needless and not values[ZOOKEEPER_SSL]:
        raise InvalidOption(
            f"{needless[0]} needs zookeeper.ssl=true. Set it, or leave {needless[0]} out."
        )
    return EnsembleOptions(
        hosts=hosts,
        root=values[ZOOKEEPER_ROOT],
        session_timeout_ms=values[SESSION_TIMEOUT],
        username=values.get(ZOOKEEPER_USERNAME) or None,
        password=values.get(ZOOKEEPER_PASSWORD),
        ssl=values[ZOOKEEPER_SSL],
        ssl_ca_certs=values.get(ZOOKEEPER_CA_CERTS),
        ssl_certfile=values.get(ZOOKEEPER_CERTFILE),
        ssl_keyfile=values.get(ZOOKEEPER_KEYFILE),
        ssl_password=values.get(ZOOKEEPER_KEY_PASSWORD),
    )
