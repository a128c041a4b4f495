"""Connected kazoo clients, and their errors in a user's terms."""

from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

from rmq_spark.errors import OwnershipRefused, OwnershipUnavailable
from rmq_spark.ownership.ensemble import EnsembleOptions

# Retry forever, with short waits: nobody works on the slots of a member that is out of touch.
CONNECT_AGAIN = {"max_tries": -1, "delay": 0.1, "max_delay": 1.0}


def new_client(options: EnsembleOptions) -> Any:
    """Connect a kazoo client. Raises OwnershipUnavailable within the session timeout.

    With a username, only this user can access the nodes that the client creates.
    """
    login = options.username is not None
    client = KazooClient(
        hosts=options.servers,
        timeout=options.session_timeout_ms / 1000,
        auth_data=[("digest", f"{options.username}:{options.password}")] if login else None,
        default_acl=list(CREATOR_ALL_ACL) if login else None,
        connection_retry=CONNECT_AGAIN,
        use_ssl=options.ssl,
        check_hostname=options.ssl,
        ca=options.ssl_ca_certs,
        certfile=options.ssl_certfile,
        keyfile=options.ssl_keyfile,
        keyfile_password=options.ssl_password,
    )
    try:
        client.start(timeout=options.session_timeout_ms / 1000)
    except KazooTimeoutError:
        raise _unavailable(options) from None
    except KazooException as error:
        client.stop()
        client.close()
        raise as_refusal(options, error) from None
    return client


def _unavailable(options: EnsembleOptions) -> OwnershipUnavailable:
    tls = (
        " With TLS, also check its certificate, which must be valid for the host in "
        "zookeeper.hosts and signed by an authority in zookeeper.sslCaCerts."
        if options.ssl
        else ""
    )
    return OwnershipUnavailable(
        f"ZooKeeper at {options.hosts} did not answer within {options.session_timeout_ms} ms. "
        "Check zookeeper.hosts, and that a majority of the ensemble is running. The log of "
        f"kazoo.client shows each failure to connect.{tls}"
    )


def as_refusal(options: EnsembleOptions, error: Exception) -> OwnershipRefused:
    """Make the error for a user or path that ZooKeeper refuses."""
    who = options.username or "nobody (zookeeper.username is not set)"
    return OwnershipRefused(
        f"ZooKeeper at {options.hosts} refuses {options.path} to {who}: {type(error).__name__}. "
        "Check zookeeper.username and zookeeper.password, and that this user may create, read, "
        "write and delete nodes there. Or set another zookeeper.root."
    )
