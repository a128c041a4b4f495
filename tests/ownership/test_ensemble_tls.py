"""TLS to ZooKeeper: with the right certificate, and with two that are not."""

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from rmq_spark.errors import OwnershipUnavailable
from rmq_spark.local.redis import free_port
from rmq_spark.local.zookeeper import LocalEnsemble
from rmq_spark.ownership.member import Member
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.topics.definition import TopicDefinition, TopicType

TOPIC = TopicDefinition("T", TopicType.FIXED_TIME, 4)


def keystore(authority, folder, host):
    """Key and certificate in the form that ZooKeeper reads."""
    issued = authority.issue_cert(host)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    plain = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / f"{host}.pem"
    file.write_bytes(plain + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return file


@pytest.fixture
def secure(tmp_path):
    """Starts a server with a certificate for a host; its address and the authority's file."""
    started = []

    def start(host):
        authority, port = trustme.CA(), free_port()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        settings = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": str(keystore(authority, tmp_path, host)),
            "ssl.trustStore.location": str(tmp_path / "ca.pem"),
            "ssl.clientAuth": "none",
        }
        started.append(LocalEnsemble(settings=settings).start())
        return f"127.0.0.1:{port}", tmp_path / "ca.pem"

    yield start
    for ensemble in started:
        ensemble.close()


def member(hosts, ca):
    options = EnsembleOptions(hosts, session_timeout_ms=3000, ssl=True, ssl_ca_certs=str(ca))
    return Member(options, TOPIC, "T", "a")


def test_a_member_joins_over_tls(secure):
    joined = member(*secure("127.0.0.1")).start()
    try:
        assert joined.wait_for_slots(30)
        assert len(joined.between_batches()) == 4
    finally:
        joined.stop()


def test_a_certificate_for_another_host_is_refused(secure):
    with pytest.raises(
        OwnershipUnavailable,
        match=r"must be valid for the host.*zookeeper\.sslCaCerts",
    ):
        member(*secure("zk.example.org")).start()


def test_a_certificate_of_another_authority_is_refused(secure, tmp_path):
    hosts, _ = secure("127.0.0.1")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    with pytest.raises(
        OwnershipUnavailable,
        match=r"must be valid for the host.*zookeeper\.sslCaCerts",
    ):
        member(hosts, tmp_path / "other.pem").start()
