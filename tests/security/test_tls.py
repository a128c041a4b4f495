"""TLS to a real Redis: verified unless the user writes that it shall not be."""

import os
import ssl
import traceback
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from rmq_spark.client import connect
from rmq_spark.errors import InvalidOption, ServerUnavailable, ServerUntrusted
from rmq_spark.redis.connection import new_client, parse_connection

from .. import servers
from ..certificates import Authority, speaks_tls
from .credentials import KEY_SECRET, SECRET, found_in


def test_a_server_that_knows_the_settings_but_cannot_use_them_speaks_no_tls(
    redis_executable, tmp_path
):
    """Such as one whose TLS is a module that is not loaded."""
    without = tmp_path / "redis-server"
    refuse = 'case "$*" in *--tls-cert-file*) exit 1;; esac'
    without.write_text(f'#!/bin/sh\n{refuse}\nexec {redis_executable} "$@"\n')
    without.chmod(0o755)
    assert not speaks_tls(str(without))


@pytest.mark.skipif("CI" not in os.environ, reason="A laptop may have no server with TLS.")
def test_one_of_the_servers_that_ci_has_speaks_tls():
    assert any(map(speaks_tls, servers.executables().values()))


@pytest.fixture
def start(tls_executable, authority):
    """Starts a server with a certificate; returns its address, by a name or by 127.0.0.1."""
    started = []

    def new(certificate, host="127.0.0.1", clients="no"):
        settings = {**authority.settings(certificate, clients), "requirepass": SECRET}
        started.append(servers.start(tls_executable, **settings))
        return f"rediss://{host}:{settings['tls-port']}/0"

    yield new
    for server in started:
        server.close()


def use(url, **options):
    """Sends and consumes a message."""
    broker = connect(url, password=SECRET, patience_s=5, **options)
    broker.create("T", "FixedTime", 1)
    assert broker.queue("T").send([b"m"], fixed_time=1).new == 1
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        assert [message.content for message in batch] == [b"m"]
        assert batch.commit() == 1
    shown = repr(broker)
    broker.close()
    return shown


def refused(kind, url, **options):
    """What the error of a connection says; it comes at once and holds no secret."""
    with pytest.raises(kind) as raised:
        connect(url, password=SECRET, patience_s=60, **options)
    text = "".join(traceback.format_exception(raised.value))
    assert found_in(text, SECRET, KEY_SECRET) == []
    return str(raised.value)


def test_a_server_whose_certificate_is_right_is_used(start, authority):
    url = start(authority.certificate("127.0.0.1"))
    assert use(url, sslCaCerts=authority.file) == f"Broker(Server({url}))"


def test_a_host_name_is_compared_too(start, authority):
    url = start(authority.certificate("localhost"), "localhost")
    use(url, sslCaCerts=authority.file)


def test_an_unknown_authority_is_refused_with_what_to_do(start, authority, tmp_path):
    url = start(authority.certificate("127.0.0.1"))
    for options in ({}, {"sslCaCerts": Authority(tmp_path).file}, {"sslCertReqs": "optional"}):
        text = refused(ServerUntrusted, url, **options)
        assert f"Redis at {url} has a certificate that is not trusted" in text
        assert "set sslCaCerts to the file of the authority" in text


def test_another_host_is_refused_with_what_to_do(start, authority):
    url = start(authority.certificate("redis.example"))
    text = refused(ServerUntrusted, url, sslCaCerts=authority.file)
    assert "not valid for '127.0.0.1'" in text
    assert "Use the host name of the certificate in url" in text


def test_a_certificate_that_has_expired_is_refused(start, authority):
    url = start(authority.expired("127.0.0.1"))
    text = refused(ServerUntrusted, url, sslCaCerts=authority.file)
    assert "certificate has expired" in text


def test_an_untrusted_cluster_is_refused_like_a_server(start, authority):
    url = start(authority.certificate("redis.example"))
    refused(ServerUntrusted, url, sslCaCerts=authority.file, cluster="true")


def test_only_what_the_user_writes_switches_verification_off(start, authority):
    url = start(authority.certificate("redis.example"))
    use(url, sslCertReqs="none")
    use(f"{url}?ssl_cert_reqs=none")
    use(url, sslCaCerts=authority.file, sslCheckHostname="false")
    text = refused(ServerUntrusted, url, sslCheckHostname="false")  # the authority still counts
    assert "is not trusted" in text


@pytest.mark.parametrize("options", [{}, {"username": "me"}, {"socketTimeout": "3s"}])
def test_by_default_certificate_and_name_are_checked(options):
    client = new_client(parse_connection({"url": "rediss://host/0", **options}))
    connection = client.connection_pool.make_connection()
    assert connection.cert_reqs == ssl.CERT_REQUIRED
    assert connection.check_hostname


@pytest.fixture
def own(authority, tmp_path):
    """A client's certificate, and its key as it is and encrypted."""
    pem = authority.certificate("a-client")
    key = serialization.load_pem_private_key(Path(pem).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(KEY_SECRET.encode()),
        )
    )
    return {"sslCertfile": pem, "sslKeyfile": str(locked)}


def test_a_server_that_asks_for_a_clients_certificate_gets_it(start, authority, own):
    url = start(authority.certificate("127.0.0.1"), clients="yes")
    use(url, sslCaCerts=authority.file, sslPassword=KEY_SECRET, **own)
    with pytest.raises(ServerUnavailable, match=r"\(sslCertfile\)"):
        connect(url, password=SECRET, sslCaCerts=authority.file, patience_s=0.2)


@pytest.mark.parametrize("password", [{}, {"sslPassword": SECRET}])
def test_a_key_that_cannot_be_opened_is_refused_and_asks_nobody(own, password):
    text = refused(InvalidOption, "rediss://127.0.0.1:1/0", **own, **password)
    assert own["sslKeyfile"] in text
    assert "For an encrypted key, set sslPassword" in text


def test_tls_is_not_taken_for_granted_without_it(start, tls_executable, authority):
    url = start(authority.certificate("127.0.0.1")).replace("rediss", "redis")
    with pytest.raises(ServerUnavailable, match="cannot be reached"):
        connect(url, patience_s=0.2)
    with servers.local(tls_executable) as plain:
        tls = plain.url.replace("redis", "rediss", 1)
        with pytest.raises(ServerUnavailable, match="that the server is running with TLS"):
            connect(tls, patience_s=0.2, socketConnectTimeout="200ms", socketTimeout="200ms")
