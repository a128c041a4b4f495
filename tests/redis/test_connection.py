"""Addresses and durations as options write them, and what they never show."""

import pytest

from rmq_spark.errors import InvalidOption
from rmq_spark.options import DEFAULT_URL
from rmq_spark.redis.connection import new_client, parse_connection
from rmq_spark.topics.parsing import parse_duration_ms

SECRET = "s3cret"
CLIENT_DEFAULTS = {
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "socket_timeout": 15.0,
}


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("RMQ_REDIS_URL", raising=False)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("0.29s", 290),
        ("1.001s", 1001),
        ("10S", 10_000),
        ("60s", 60_000),
        ("2min", 120_000),
        (" 5 m ", 300_000),
        ("1.5h", 5_400_000),
        ("1d", 86_400_000),
    ],
)
def test_a_duration_has_a_number_and_a_unit(text, ms):
    assert parse_duration_ms("wait", text) == ms


@pytest.mark.parametrize("text", ["", "60", "s", "-1s", "1 s m", "1,5s", "1e3s", "5y", "1s1s", "."])
def test_another_duration_is_refused(text):
    with pytest.raises(InvalidOption) as raised:
        parse_duration_ms("wait", text)
    assert str(raised.value) == (
        f"wait={text!r} is not a duration. Accepted: a number with its unit, one of ms, s, m, h or "
        "d, such as 500ms, 60s or 5m."
    )


def test_the_local_server_is_the_default_and_a_variable_comes_before_it(monkeypatch):
    assert parse_connection({}).url == "redis://127.0.0.1:6379/0"
    monkeypatch.setenv("RMQ_REDIS_URL", "redis://elsewhere:7000/3")
    assert parse_connection({}).url == "redis://elsewhere:7000/3"
    assert parse_connection({"url": "redis://here:1/0"}).url == "redis://here:1/0"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host:7000/3", "redis://host:7000/3"),
        ("redis://host", "redis://host"),
        (f"redis://:{SECRET}@[2001:db8::5]:7000/3", "redis://[2001:db8::5]:7000/3"),
        (f"rediss://me:{SECRET}@host:7000/0", "rediss://host:7000/0"),
        (f"redis://:{SECRET}@host/0?password={SECRET}", "redis://host/0"),
        (f"unix://me:{SECRET}@/run/redis.sock?db=1&password={SECRET}", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_credentials(url, address):
    options = parse_connection({"url": url, "password": SECRET, "sslPassword": SECRET})
    assert options.address == address
    assert SECRET not in f"{options!r} {options}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ()),
        ({"url": DEFAULT_URL}, ()),
        ({"url": "redis://u:Zk4-word@h:7000/1"}, ("--redis-url", "redis://h:7000/1")),
        ({"url": "redis://h:7000?db=2"}, ("--redis-url", "redis://h:7000?db=2")),
        ({"url": "redis://[::1]:7000/1"}, ("--redis-url", "redis://[::1]:7000/1")),
        (
            {"sentinels": "[::1]:1,i", "sentinelMaster": "m"},
            ("-o", "redis.sentinels=[::1]:1,i:26379", "-o", "redis.sentinelMaster=m"),
        ),
        ({"url": "unix:///r.sock?db=2&password=Zk4"}, ("--redis-url", "unix:///r.sock?db=2")),
        (
            {"url": "redis://h:7000", "cluster": "true"},
            ("--redis-url", "redis://h:7000", "--redis-cluster"),
        ),
        (
            {"sentinels": "h:1,i:2", "sentinelMaster": "m", "sentinelPassword": "Zk4"},
            ("-o", "redis.sentinels=h:1,i:2", "-o", "redis.sentinelMaster=m"),
        ),
    ],
)
def test_the_command_gets_the_address_unless_it_finds_it_and_no_secret(options, words):
    assert parse_connection(options).command_options == words


def test_the_command_finds_the_address_of_the_environment_by_itself(monkeypatch):
    monkeypatch.setenv("RMQ_REDIS_URL", "redis://u:Zk4-word@h:7000/1")
    assert parse_connection({}).command_options == ()
    local = parse_connection({"url": DEFAULT_URL})
    assert local.command_options == ("--redis-url", DEFAULT_URL)


@pytest.mark.parametrize(
    "url",
    [
        f"http://{SECRET}@host",
        f"{SECRET}@host:6379",
        f"redis://:{SECRET}@host:port/0",
        f"redis://:{SECRET}@host:99999/0",
        f"redis://:{SECRET}@host:0/0",
        f"redis://:{SECRET}@host/orders",
        f"redis://:{SECRET}@host/0/1",
        f"redis://:{SECRET}@[::1/0",
        f"redis://admin:4711#{SECRET}@host/0",
        f"redis://admin:4711?{SECRET}@host/0",
        f"redis://admin:4711/{SECRET}@host/0",
        f"redis://host/0#{SECRET}",
        f"unix://me:4711/{SECRET}@/run/redis.sock",
        "unix://",
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_it(url):
    with pytest.raises(InvalidOption) as raised:
        parse_connection({"url": url})
    assert str(raised.value).startswith("url is not accepted")
    assert "redis://host:6379/0" in str(raised.value)
    assert "%23 for #" in str(raised.value)
    assert str(raised.value).endswith(" Or set username and password.")
    assert SECRET not in str(raised.value)
    assert "4711" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("name", ["passwort", "host", "db", "retry", ""])
def test_an_unknown_option_is_refused_with_those_accepted_and_not_its_value(name):
    with pytest.raises(InvalidOption) as raised:
        parse_connection({name: SECRET})
    unknown, _, accepted = str(raised.value).partition("Accepted: ")
    assert unknown.startswith(f"Unknown option for the connection to Redis: {name}. ")
    assert accepted.startswith("url, username, ")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("name", ["socketTimeout", "sockettimeout", "SOCKET_TIMEOUT"])
def test_options_are_known_in_any_case(name):
    assert dict(parse_connection({name: "3s"}).client) == {**CLIENT_DEFAULTS, "socket_timeout": 3.0}


def test_the_client_has_its_defaults():
    assert dict(parse_connection({}).client) == CLIENT_DEFAULTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cluster", "yes"),
        ("socketTimeout", "3"),
        ("socket_timeout", "0s"),
        ("clientName", "two words"),
        ("clientName", ""),
        ("socketKeepalive", "on"),
        ("sslCertReqs", "maybe"),
        ("sslCheckHostname", ""),
    ],
)
def test_a_bad_value_is_refused_naming_the_option(name, value):
    with pytest.raises(InvalidOption, match=rf"^{name}={value!r}"):
        parse_connection({name: value})


def test_an_address_of_the_environment_that_is_none_is_refused_by_its_name(monkeypatch):
    monkeypatch.setenv("RMQ_REDIS_URL", "here")
    with pytest.raises(InvalidOption, match=r"^RMQ_REDIS_URL is not accepted"):
        parse_connection({})


def test_a_keyword_that_contradicts_another_is_named_as_a_keyword():
    given = {"min_replicas": "1", "replica_timeout": "9s", "socketTimeout": "5s"}
    with pytest.raises(InvalidOption) as raised:
        parse_connection(given)
    assert str(raised.value) == (
        "socketTimeout=5s is not accepted with replica_timeout=9000ms: the connection would time "
        "out before the replicas confirm. Accepted: a socketTimeout longer than replica_timeout."
    )


@pytest.mark.parametrize("name", ["sslCaCerts", "sslCertfile", "sslKeyfile"])
def test_a_file_that_is_not_there_is_refused_naming_option_and_file(name, tmp_path):
    for path in (str(tmp_path / "ca.pem"), str(tmp_path), ""):
        with pytest.raises(InvalidOption) as raised:
            parse_connection({name: path})
        assert f"{name}={path!r} is not accepted" in str(raised.value)


def test_special_characters_of_a_password_may_be_escaped():
    url = "redis://admin:a%23b%3Fc%40d%2Fe@host:7000/0"
    options = parse_connection({"url": url})
    assert options.address == "redis://host:7000/0"
    client = new_client(options)
    assert client.get_connection_kwargs()["password"] == "a#b?c@d/e"


def test_all_options_of_the_client_are_parsed(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.touch()
    options = parse_connection(
        {
            "username": "me",
            "password": SECRET,
            "cluster": "TRUE",
            "socketConnectTimeout": "250ms",
            "socketKeepalive": "false",
            "clientName": "billing",
            "sslCaCerts": str(ca),
            "sslCertReqs": "none",
            "sslCheckHostname": "true",
        }
    )
    assert (options.username, options.password, options.cluster) == ("me", SECRET, True)
    assert dict(options.client) == {
        "socket_timeout": 15.0,
        "socket_connect_timeout": 0.25,
        "socket_keepalive": False,
        "client_name": "billing",
        "ssl_ca_certs": str(ca),
        "ssl_cert_reqs": "none",
        "ssl_check_hostname": True,
    }


@pytest.mark.parametrize("parameter", ["decode_responses=true", "encoding=utf-16"])
def test_an_address_that_changes_what_is_read_is_refused(parameter):
    """Seen: a TypeError out of connect."""
    options = parse_connection({"url": f"redis://:{SECRET}@host/0?{parameter}"})
    with pytest.raises(InvalidOption, match=f"^url has the parameter {parameter.split('=')[0]}"):
        new_client(options)


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        ("credential_provider=no", "does not take from a text"),
        ("retry=5", "does not take from a text"),
        ("cache=1", "does not take from a text"),
        ("socket_timeout=0", "Accepted: a number above 0"),
        ("socket_timeout=nan", "Accepted: a number above 0"),
        ("socket_connect_timeout=soon", "Accepted: a number above 0"),
        ("socket_read_size=-1", "Accepted: a number above 0"),
        ("protocol=9", "Accepted: 2 or 3"),
        ("ssl_cert_reqs=maybe", "Accepted: none, optional or required"),
        ("client_name=a%20b", "Accepted: a text without spaces"),
    ],
)
def test_an_address_with_which_no_connection_works_is_refused_at_once(parameter, why):
    """Seen: an AttributeError out of connect, or a server that "cannot be reached"."""
    options = parse_connection({"url": f"redis://:{SECRET}@host/0?{parameter}"})
    name = parameter.split("=")[0]
    with pytest.raises(InvalidOption, match=f"^url has the parameter {name}, .*{why}") as refused:
        new_client(options)
    assert SECRET not in str(refused.value)


def test_an_address_with_timeouts_and_a_protocol_is_accepted():
    new_client(
        parse_connection({"url": "redis://host/0?socket_timeout=2.5&protocol=3&client_name=a:b"})
    )
