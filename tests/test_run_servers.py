"""Which servers are tested on, and what is counted."""

import pytest

from rmq_spark.errors import ServerUnavailable
from rmq_spark.local import redis as local_redis

from . import servers
from .run_servers import arguments, count, environment, version_of

REPORT = """<testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"><failure/></testcase>
<testcase name="c"><error/></testcase>
<testcase name="d"><skipped/></testcase>
<testcase name="e"/>
</testsuite></testsuites>"""


def program(folder, name, text="#!/bin/sh\n"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A PATH with nothing on it, and no server in a package."""
    monkeypatch.setattr(local_redis, "embedded_redis_server", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    return tmp_path


def test_a_valkey_server_on_path_is_found_if_no_redis_server_is(bare):
    with pytest.raises(ServerUnavailable, match="No redis-server or valkey-server was found"):
        local_redis.find_redis_server()
    valkey = program(bare / "one", "valkey-server")
    assert local_redis.find_redis_server() == valkey
    assert servers.system_redis_server(f"{bare / 'one'}:{bare / 'two'}") == valkey
    redis = program(bare / "two", "redis-server")
    assert local_redis.find_redis_server() == redis
    assert servers.system_redis_server(f"{bare / 'one'}:{bare / 'two'}") == redis


def test_a_server_that_is_given_is_the_only_one_to_test_on(monkeypatch):
    monkeypatch.delenv(servers.HANDED, raising=False)
    monkeypatch.setenv(servers.GIVEN, "/some/valkey-server")
    assert servers.executables() == {"given": "/some/valkey-server"}
    assert servers.newest() == "/some/valkey-server"


def test_a_server_that_is_a_link_keeps_its_name(tmp_path):
    program(tmp_path, "many-programs-in-one")
    link = tmp_path / "redis-server"
    link.symlink_to("many-programs-in-one")
    assert environment(str(link))[servers.GIVEN] == str(link)


def test_a_server_tells_its_version():
    for server in servers.executables().values():
        name, version = version_of(server)
        assert name in ("Redis", "Valkey")
        assert int(version.split(".")[0]) >= 6


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be run: No such file"), ("#!/bin/sh\necho 7\n", "is no redis-server")],
)
def test_what_is_no_server_is_refused_before_the_first_test(tmp_path, capsys, text, said):
    path = program(tmp_path, "x", text) if text else str(tmp_path / "x")
    with pytest.raises(SystemExit):
        arguments(["--server", path])
    assert f"--server: {path!r} {said}" in capsys.readouterr().err


def test_outcomes_are_counted_and_a_run_that_broke_off_is_no_success(tmp_path):
    report = tmp_path / "report.xml"
    assert count(report) == {"failed": 1}
    report.write_text(REPORT)
    assert count(report) == {"passed": 2, "failed": 2, "skipped": 1}
