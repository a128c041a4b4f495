"""The options behind zookeeper., good and bad; no server."""

import pytest

from rmq_spark.errors import InvalidOption
from rmq_spark.ownership.zookeeper import EnsembleOptions, parse_ensemble
from rmq_spark.spark.options import parse_source_options


def test_without_any_there_is_none():
    assert parse_ensemble({}) is None
    assert parse_source_options({"topic": "T"}).ensemble is None


def test_hosts_are_enough_and_names_have_any_case():
    assert parse_ensemble({"HOSTS": "zk1:2181,zk2:2181/queues"}) == EnsembleOptions(
        "zk1:2181,zk2:2181/queues", root="/rmq", session_timeout_ms=10_000
    )


def test_all_of_them_come_with_the_source(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("x")
    options = parse_source_options(
        {
            "topic": "T",
            "zookeeper.hosts": "zk",
            "zookeeper.root": "/a/b",
            "zookeeper.sessionTimeout": "4s",
            "zookeeper.username": "u",
            "zookeeper.password": "hidden-secret",
            "zookeeper.ssl": "true",
            "zookeeper.sslCaCerts": str(file),
        }
    )
    ensemble = options.ensemble
    assert (ensemble.root, ensemble.session_timeout_ms) == ("/a/b", 4000)
    assert (ensemble.username, ensemble.password) == ("u", "hidden-secret")
    assert ensemble.ssl
    assert ensemble.ssl_ca_certs == str(file)
    assert "hidden-secret" not in repr(options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"root": "/rmq"}, "zookeeper.hosts is missing"),
        ({"hosts": " "}, "zookeeper.hosts=' ' is not accepted. Accepted: host:port,"),
        ({"hosts": "--no-spark"}, "zookeeper.hosts='--no-spark' is not accepted. Accepted: host"),
        ({"hosts": "zk:0"}, "zookeeper.hosts='zk:0'"),
        ({"hosts": "zk:port"}, "host:port, separated by commas"),
        ({"hosts": "zk,,zk2"}, "zookeeper.hosts="),
        ({"hosts": "u:hidden-secret@zk:2181"}, "zookeeper.hosts is not accepted (its value is not"),
        ({"hosts": "zk/"}, "zookeeper.hosts='zk/'"),
        ({"hosts": "zk1:2181/rmq,zk2:2181/rmq"}, "an optional path after the last"),
        ({"hosts": "zk1:2181;zk2:2181"}, "host:port, separated by commas"),
        ({"hosts": "zk1 zk2"}, "host:port, separated by commas"),
        ({"hosts": "zk/../x"}, "zookeeper.hosts="),
        ({"hosts": "zk", "username": "", "password": "hidden-secret"}, "missing or empty"),
        ({"hosts": "zk", "sslPassword": "hidden-secret"}, "needs zookeeper.ssl=true"),
        ({"hosts": "zk", "root": "rmq"}, "zookeeper.root='rmq'"),
        (
            {"hosts": "zk", "root": "/"},
            "zookeeper.root='/' is not accepted. Accepted: a path: /shop/rmq.",
        ),
        ({"hosts": "zk", "root": "/a/../b"}, "zookeeper.root="),
        ({"hosts": "zk", "root": "/a/"}, "zookeeper.root="),
        ({"hosts": "zk", "sessionTimeout": "10"}, "zookeeper.sessionTimeout"),
        ({"hosts": "zk", "sessionTimeout": "1ms"}, "1s to 1h"),
        ({"hosts": "zk", "username": "u"}, "Set both or neither"),
        ({"hosts": "zk", "password": "hidden-secret"}, "Set both or neither"),
        ({"hosts": "zk", "ssl": "yes"}, "true or false"),
        ({"hosts": "zk", "sslCaCerts": __file__}, "sslCaCerts needs zookeeper.ssl=true"),
        ({"hosts": "zk", "ssl": "true", "sslCaCerts": "/none"}, "can be read"),
        ({"hosts": "zk", "chroot": "/x"}, "Accepted: zookeeper.hosts, zookeeper.root"),
    ],
)
def test_bad_ones_are_refused_naming_what_is_accepted(given, said):
    with pytest.raises(InvalidOption) as refused:
        parse_ensemble(given)
    assert said in str(refused.value)
    assert "hidden-secret" not in str(refused.value)
