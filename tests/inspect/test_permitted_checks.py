"""What doctor says as the user of docs/security.md, who may not run every command."""

import shlex
import subprocess

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.errors import ServerRefused
from rmq_spark.inspect.checks import (
    FAIL,
    OK,
    SKIP,
    WARN,
    check_schedules,
    check_server,
    check_topics,
    redis_cli,
    remedy_of,
)
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.permissions import Role

from .. import missing, servers
from ..security.credentials import PREFIX, SECRET, permit


@pytest.fixture
def admin(own_redis):
    permit(own_redis.url, "rmq")
    with connect(own_redis.url, key_prefix=PREFIX) as broker:
        yield broker


def checked(own_redis, prefix=PREFIX):
    with connect(own_redis.url, username="rmq", password=SECRET, key_prefix=prefix) as broker:
        found = [*check_server(broker), *check_topics(broker), *check_schedules(broker)]
    return {finding.what: finding for finding in found}


def test_full_topics_are_found_by_a_user_without_scan(own_redis, admin):
    """Failed before: without SCAN, nothing was said about the room in topics."""
    admin.create("Orders", "FixedTime", 1, max_messages=10)
    admin.queue("Orders").send([f"m{number}" for number in range(9)], fixed_time=0)
    found = checked(own_redis)
    assert (found["Room"].state, "90% of its share" in found["Room"].seen) == (WARN, True)
    admin.create("Files", "FixedTime", 1, max_bytes=2000)
    admin.queue("Files").send(["m" * 1900], fixed_time=0)
    remedies = [one.remedy.split()[-2:] for one in check_topics(admin) if one.what == "Room"]
    assert remedies == [["--max-bytes", "..."], ["--max-messages", "..."]]  # before: twice messages
    claims = found["Claims"]
    assert claims.state == SKIP
    assert claims.seen == (
        "not looked for claims whose record was deleted by hand: this user may not run SCAN"
    )
    run_remedy(own_redis, claims.remedy)
    assert checked(own_redis)["Claims"].state == OK


_ROLES = {"": Role.ALL, "-sender": Role.SENDER, "-reader": Role.READER}


@pytest.mark.parametrize(
    ("user", "role", "without", "lacks"),
    [
        ("rmq", Role.ALL, "", ""),
        ("rmq-reader", Role.READER, "", ""),
        ("rmq-sender", Role.SENDER, "", ""),
        ("rmq-reader", Role.READER, "hlen", "may not run HLEN"),
        ("rmq-sender", Role.SENDER, "zadd", "may not run ZADD"),
        *((f"rmq{of}", role, "evalsha", "may not run EVALSHA") for of, role in _ROLES.items()),
        ("rmq-sender", Role.SENDER, "script|load", "may not run SCRIPT|LOAD"),
        ("rmq-sender", Role.READER, "", "may not run HGETALL, "),
        ("rmq-reader", Role.SENDER, "", "may not run HDEL, "),
    ],
)
def test_a_user_needs_what_its_role_needs(own_redis, user, role, without, lacks):
    """Failed before: a sender and a reader as documented failed, and were told to get the rest."""
    permit(own_redis.url, user, without=without)
    with connect(own_redis.url, username=user, password=SECRET, key_prefix=PREFIX) as broker:
        found = {finding.what: finding for finding in check_server(broker, role)}["Redis user"]
    assert (found.state, found.seen.startswith(lacks)) == (FAIL if lacks else OK, True)


def run_remedy(own_redis, command):
    begin = f"redis-cli -u {own_redis.url} --user ADMINISTRATOR --askpass "
    assert command.startswith(begin)
    command, note = command.removeprefix(begin).split("  # ")
    assert note == "then ACL SAVE, or the same in redis.conf, for its next start"
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.execute_command(*command.split())


@pytest.mark.parametrize("place", ["option", "address"])
def test_a_remedy_works_with_an_authority_of_ones_own(tls_executable, authority, place):
    """Failed before: redis-cli did not trust the server."""
    missing.found("redis-cli", "redis-cli", "apt-get install redis-tools")
    settings = authority.settings(authority.certificate("127.0.0.1"))
    with servers.local(tls_executable, **settings) as own:
        permit(own.url, "rmq")
        url = f"rediss://127.0.0.1:{settings['tls-port']}/0"
        trust = {"ssl_ca_certs": authority.file} if place == "option" else {}
        address = url if trust else f"{url}?ssl_ca_certs={authority.file}"
        login = {"username": "rmq", "password": SECRET, "key_prefix": PREFIX}
        with connect(address, **login, **trust) as broker:
            (claims,) = [one for one in check_topics(broker) if one.what == "Claims"]
        assert f"--cacert {authority.file} --user ADMINISTRATOR --askpass ACL" in claims.remedy
        command = claims.remedy.replace(" --user ADMINISTRATOR --askpass", "")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout == "OK\n"
        with redis.Redis.from_url(own.url) as client:
            assert "+scan" in client.acl_getuser("rmq")["commands"]


def test_a_remedy_shows_a_clients_certificate_too(authority):
    file = authority.certificate("client")
    given = {"url": "rediss://r:1/0", "sslCertfile": file, "sslKeyfile": file}
    options = parse_connection({**given, "sslCertReqs": "none"}).redis_cli_options
    assert options == ("--cert", file, "--key", file, "--insecure")


def test_what_a_crash_loses_is_told_to_who_may_not_read_the_settings_too(own_redis, admin):
    """Failed before: the check was skipped, and everysec was as good as always."""

    def on_disk(broker):
        return next(one for one in check_server(broker) if one.what == "Redis on disk")

    seen = checked(own_redis)["Redis on disk"]
    assert (seen.state, "a crash loses messages" in seen.seen) == (WARN, True)
    client = admin.server.client
    client.config_set("appendonly", "yes")
    assert "a crash of the machine loses about a second" in on_disk(admin).seen
    client.config_set("appendfsync", "always")
    assert on_disk(admin).seen == "appendonly yes"
    assert checked(own_redis)["Redis on disk"].state == OK


def test_a_database_that_the_user_may_not_select_is_no_matter_of_the_password(own_redis, admin):
    with pytest.raises(ServerRefused) as raised:
        connect(f"{own_redis.url[:-1]}3", username="rmq", password=SECRET, patience_s=0)
    assert remedy_of(raised.value) == "Permit the user +select (docs/security.md)"


@pytest.mark.parametrize("prefix", ["", "other:"])
def test_a_prefix_that_is_not_the_users_is_told(own_redis, admin, prefix):
    """Failed before: the user could run everything, and needed another password."""
    found = checked(own_redis, prefix)
    assert found["Redis user"].state == FAIL
    assert found["Redis user"].seen == "this user may not use the keys of the queue"
    for what in ("Redis user", "Claims", "Room", "Schedules"):
        assert "Give the prefix of its keys" in found[what].remedy
        assert found[what].state in (FAIL, SKIP)


def test_a_user_who_may_read_no_figures_sees_which_checks_were_skipped(own_redis, admin):
    admin.create("Orders", "FixedTime", 1, max_messages=10)
    permit(own_redis.url, "rmq", without="hgetall")
    found = checked(own_redis)
    for what in ("Claims", "Room", "Schedules"):
        assert (found[what].state, found[what].seen) == (
            SKIP,
            "not checked: this user may not run HGETALL",
        )
        assert found[what].remedy.partition("  # ")[0].endswith("ACL SETUSER rmq +hgetall")


@pytest.mark.parametrize(
    ("given", "node", "address"),
    [
        ({"url": "rediss://u:p@a:1?ssl_cert_reqs=none", "cluster": "true"}, "b:2", "rediss://b:2"),
        ({"url": "redis://a:1", "cluster": "true"}, "::1:7", "redis://[::1]:7"),
        ({"url": "redis://a:1/3"}, None, "redis://a:1/3"),
        ({"sentinels": "s", "sentinelMaster": "m"}, "b:2", "redis://b:2/0"),
        (
            {"sentinels": "s", "sentinelMaster": "m", "sslCertReqs": "none"},
            "b:2",
            "rediss://b:2/0",
        ),
    ],
)
def test_a_remedy_leads_to_the_node_that_needs_it(given, node, address):
    command = redis_cli(parse_connection(given), "PING", node)
    assert shlex.split(command)[:3] == ["redis-cli", "-u", address]
    assert "u:p" not in command
