"""A server that is away, locked, full of other things, or goes away and comes back."""

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.connection import Connection

from rmq_spark.client import Message, connect
from rmq_spark.errors import (
    InvalidOption,
    RmqError,
    ScriptFailed,
    ServerRefused,
    ServerUnavailable,
    ServerUnsuitable,
)
from rmq_spark.local.redis import LocalRedis, free_port
from rmq_spark.local.zookeeper import LocalEnsemble, LocalZookeeper
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.calls import Call
from rmq_spark.redis.server import Server, _version_of

from .. import servers
from ..logs import logged
from ..processes import NEEDS_PROC
from ..seeding import numbered
from ..servers import NOBODYS_PORT

SECRET, WRONG = "s3cret", "wr0ng"


@pytest.fixture
def locked_redis(redis_executable):
    with servers.LocalRedis(redis_executable, {**servers.SETTINGS, "requirepass": SECRET}) as own:
        yield own


def test_without_a_server_tests_are_skipped_on_a_laptop_and_fail_in_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Needs a redis-server: apt-get"):
        servers.do_without()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Needs a redis-server: apt-get"):
        servers.do_without()


def with_password(url, password):
    return url.replace("redis://", f"redis://:{password}@")


def test_a_server_that_is_away_is_named_with_what_to_check():
    url = f"redis://:{SECRET}@127.0.0.1:{NOBODYS_PORT}/0"
    with pytest.raises(ServerUnavailable) as raised:
        connect(url, patience_s=1)  # time for several tries
    text = str(raised.value)
    assert f"Redis at {url.replace(f':{SECRET}@', '')} cannot be reached" in text
    assert "Check that url or RMQ_REDIS_URL is right and that the server is running." in text
    assert re.search(r"rmq-spark tried \d times in \d+\.\d s\.", text)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_client_without_the_password_that_a_server_requires_now_is_told(own_redis):
    """Failed before, with ScriptFailed: Redis refuses long commands of strangers in another way."""
    with connect(own_redis.url, patience_s=0.2) as broker:
        broker.create("T", "Priority", 16)
        queue = broker.queue("T")
        queue.send(["a"], priority=20)
        broker.server.command("CONFIG", "SET", "requirepass", SECRET)
        with redis.Redis.from_url(with_password(own_redis.url, SECRET)) as other:
            other.client_kill_filter(_type="normal", skipme=True)
            told = []
            for _ in range(3):
                # Redis may also close the connection before its answer is read.
                with pytest.raises((ServerRefused, ServerUnavailable)) as raised:
                    queue.send(["a"], priority=20)
                told.append(raised.type)
            other.config_set("requirepass", "")
    assert ServerRefused in told


def test_a_server_that_accepts_no_more_connections_is_not_said_to_be_away(own_redis):
    """Failed before: it advised to check the address, and that the server was running."""
    with redis.Redis.from_url(own_redis.url) as other:
        other.config_set("maxclients", len(other.client_list()))
        told = []
        for _ in range(3):
            # Redis may also close the connection before its answer is read.
            with pytest.raises(ServerUnavailable) as raised:
                connect(own_redis.url, patience_s=0.2)
            told.append(str(raised.value))
    assert any("Close some, or raise maxclients" in text for text in told)


def test_an_outage_is_told_in_one_line_at_once(caplog):
    url = f"redis://:{SECRET}@127.0.0.1:{NOBODYS_PORT}/0"
    with pytest.raises(ServerUnavailable):
        connect(url, patience_s=1)  # time for several tries
    address = url.replace(f":{SECRET}@", "")
    lines = [line for line in caplog.messages if address in line]
    assert lines == [f"rmq: retrying Redis at {address} for up to 1 s: ConnectionError"]


def test_a_wrong_password_is_refused_at_once(locked_redis):
    url = with_password(locked_redis.url, WRONG)
    with pytest.raises(ServerRefused) as raised:
        connect(url, patience_s=60)
    assert "refused the user or password. Check the user and the password in url." in str(
        raised.value
    )
    assert WRONG not in "".join(traceback.format_exception(raised.value))


def test_a_wrong_password_is_looked_for_where_it_was_given(locked_redis, monkeypatch):
    """Failed before: it named username and password, also if RMQ_REDIS_URL had them."""
    with pytest.raises(ServerRefused, match=r"Check username and password\."):
        connect(locked_redis.url, password=WRONG, patience_s=0)
    monkeypatch.setenv("RMQ_REDIS_URL", locked_redis.url)  # without a password
    with pytest.raises(ServerRefused, match="Check the user and the password in RMQ_REDIS_URL"):
        connect(patience_s=0)
    monkeypatch.setenv("RMQ_REDIS_URL", with_password(locked_redis.url, WRONG))
    with pytest.raises(ServerRefused, match="Check the user and the password in RMQ_REDIS_URL"):
        connect(patience_s=0)


def test_a_missing_password_is_asked_for_at_once(locked_redis):
    with pytest.raises(ServerRefused, match=r"password"):
        connect(locked_redis.url, patience_s=60)


def test_the_right_password_is_taken_from_address_or_option_and_never_shown(locked_redis):
    for broker in (
        connect(with_password(locked_redis.url, SECRET), patience_s=2),
        connect(locked_redis.url, password=SECRET, patience_s=2),
    ):
        broker.create("T", "Priority", 1)
        queue = broker.queue("T")
        shown = [broker, broker.server, queue, broker.consumer("T", "a"), broker.server._options]
        assert SECRET not in " ".join(map(repr, shown))
        broker.close()


def test_no_error_shows_a_password(locked_redis):
    broker = connect(with_password(locked_redis.url, SECRET), patience_s=0.1)
    broker.create("T", "Priority", 1)
    queue = broker.queue("T")
    broker.server.command("SET", queue.keys.claims(0), "in the way")
    failing = [
        lambda: queue.ask(reading.due, [0], "a"),
        lambda: broker.server.command("NO-SUCH-COMMAND"),
        lambda: queue.send([Message(b"m", priority=3)]),
        lambda: broker.definition("unknown"),
    ]
    for fail in failing:
        with pytest.raises(RmqError) as raised:
            fail()
        assert SECRET not in "".join(traceback.format_exception(raised.value))
    locked_redis.kill()
    with pytest.raises(ServerUnavailable) as raised:
        queue.figures()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_user_without_permission_is_told_so(own_redis):
    admin = redis.Redis.from_url(own_redis.url)
    admin.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read", "+info")
    admin.close()
    with pytest.raises(ServerRefused, match="does not permit this user") as raised:
        connect(own_redis.url, username="reader", password=SECRET, patience_s=2).create(
            "T", "Priority"
        )
    assert SECRET not in str(raised.value)


def test_a_user_of_other_keys_is_told_to_give_their_prefix(own_redis):
    """Failed before: the error named only commands, and to grant the keys."""
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.execute_command("ACL", "SETUSER", "shop", "on", f">{SECRET}", "~shop:*", "+@all")
    keys = r"Give the prefix of its keys \(--key-prefix, key_prefix or keyPrefix\)"
    with connect(own_redis.url, username="shop", password=SECRET, patience_s=2) as broker:
        with pytest.raises(ServerRefused, match=keys):
            broker.create("T", "Priority")
        with pytest.raises(ServerRefused, match=keys):
            broker.server.call("drop", ["x"], ["y"])


def test_a_database_that_is_not_there_is_refused(own_redis):
    with pytest.raises(ServerRefused, match=r"does not have this database.* end of url"):
        connect(own_redis.url[:-1] + "99", patience_s=60)


def test_databases_are_apart(own_redis):
    here, there = (connect(own_redis.url[:-1] + number, patience_s=2) for number in "01")
    here.create("T", "Priority", 1)
    assert there.find("T") is None
    for broker in (here, there):
        broker.close()


def test_a_server_started_again_is_gone_on_with(own_redis):
    own_redis.settings["appendonly"] = "yes"
    own_redis.settings["appendfsync"] = "always"
    own_redis.kill()
    own_redis.start()
    broker = connect(own_redis.url, patience_s=20)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send(numbered(10), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll(limit=5)
        own_redis.kill()
        back = threading.Timer(0.2, own_redis.start)
        back.start()
        # Waits for the server, and loads the scripts that the new process does not know.
        assert batch.commit() == 5
        back.join()
        assert len(consumer.poll()) == 5
    broker.close()


class Lossy:
    """Passes bytes between a client and a server, and cuts the line before one reply."""

    def __init__(self, port):
        self._server_port, self._cut = port, False
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_reply(self):
        self._cut = True

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else its thread waits, and keeps the port
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for source, target in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pass, args=(source, target, target is client), daemon=True
                ).start()

    def _pass(self, source, target, is_reply):
        with contextlib.suppress(OSError):
            while received := source.recv(65536):
                if is_reply and self._cut:
                    self._cut = False
                    break
                target.sendall(received)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def lossy(own_redis):
    line = Lossy(own_redis.port)
    yield line
    line.close()


def test_a_claim_whose_reply_was_lost_is_asked_for_again_and_is_the_same(lossy, monkeypatch):
    """Seen: one pop, retried by the client, became eleven."""
    broker = connect(lossy.url, patience_s=10)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send(numbered(100), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        claim = claiming.claim

        def claim_that_is_cut(*args, **how):
            lossy.lose_next_reply()
            return claim(*args, **how)

        monkeypatch.setattr(claiming, "claim", claim_that_is_cut)
        batch = consumer.poll(limit=10)
        assert len(batch) == 10
        assert {message.delivery_count for message in batch} == {1}
        assert queue.figures().store.count == 90
        lossy.lose_next_reply()
        assert batch.commit() == 10  # it was done the first time
        assert queue.figures().counters["committed"] == 10
    broker.close()


def test_a_change_of_a_topic_whose_reply_was_lost_is_done_as_a_whole(lossy, monkeypatch):
    """Seen: a call took its own change for another's, left the rest undone, and said so."""
    broker = connect(lossy.url, patience_s=10)
    call = type(broker.server).call

    def change(make, *args, **how):
        def call_that_is_cut(server, script, keys, args):
            of = server, script, keys, args
            if args[1] == args[2]:  # it only looks
                return call(*of)
            monkeypatch.undo()
            lossy.lose_next_reply()
            return call(*of)

        monkeypatch.setattr(type(broker.server), "call", call_that_is_cut)
        return make(*args, **how)

    def everything():
        return set(broker.server.client.keys("*"))

    broker.create("T", "FixedTime", 1, groups=("default", "x"), exclusive=True)
    queue = broker.queue("T")
    queue.send([b"old"], fixed_time=0)
    broker.server.command("HSET", queue.keys.consumers(0), reading.EPOCH_FIELD, 7)
    assert not change(broker.alter, "T", exclusive=False).exclusive
    assert broker.queue("T").ask(reading.epochs, [0]) == [0]

    assert change(broker.remove_group, "T", "x", drop=True) == 1
    assert not [key for key in everything() if key.endswith(b"@x")]
    queue.of_group("x").ask(claiming.pause, 3_600_000)  # of a call that was still in progress
    change(broker.add_group, "T", "x")
    broker.queue("T").send([b"new"], fixed_time=0)
    with broker.consumer("T", "a", group="x") as consumer:
        assert [message.content for message in consumer.poll()] == [b"new"]

    broker.schedule("s", "T", b"m", every="1h")
    note = ("HSET", queue.keys.schedules(0), "s", "1 1")
    broker.server.command(*note)
    assert change(broker.unschedule, "s")
    assert not broker.server.command("EXISTS", queue.keys.schedules(0))

    change(broker.delete, "T")
    assert everything() == set()
    broker.close()


def test_a_send_whose_reply_was_lost_merges_with_itself(lossy):
    broker = connect(lossy.url, patience_s=10)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send([b"warm"], fixed_time=1000)
    lossy.lose_next_reply()
    assert queue.send([b"m"], fixed_time=1000).merged == 1
    assert queue.figures().store.count == 2
    broker.close()


def test_a_line_that_stays_broken_is_given_up_in_time_and_by_name(own_redis):
    broker = connect(own_redis.url, patience_s=0.3)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    own_redis.kill()
    with pytest.raises(ServerUnavailable, match=r"cannot be reached .*tried \d times in 0\.\d s"):
        queue.send([b"m"], fixed_time=1000)
    own_redis.start()
    broker.create("T", "FixedTime", 1)
    assert queue.send([b"m"], fixed_time=1000).new == 1
    broker.close()


def test_all_scripts_of_a_pipeline_run_though_one_fails(broker):
    broker.create("T", "FixedTime", 2)
    queue = broker.queue("T")
    broker.server.command("SET", queue.keys.store(0), "in the way")
    calls = sending.send(queue.queues, {slot: [500, b"m"] for slot in (0, 1)}).calls
    with pytest.raises(RmqError, match=r"the key .* holds a string"):
        broker.server.pipeline(calls)
    assert broker.server.command("ZCARD", queue.keys.store(1)) == 1


def sent_around(server, queue, *between):
    """Sends a message with two scores in two calls of a pipeline, with commands between them."""
    pairs = {0: [500, b"m"] + [500, b"other"] * (sending.MESSAGES_A_SEND - 1) + [900, b"m"]}
    request = sending.send(queue.queues, pairs)
    first, last = request.calls
    return server.ask(replace(request, calls=[first, *between, last], parse=list))


@pytest.fixture
def mending(own_redis):
    """A server of its own, a client of it, and a topic there."""
    with contextlib.closing(connect(own_redis.url)) as broker:
        broker.create("T", "FixedTime", 1)
        broker.queue("T").send([b"loads the scripts"], fixed_time=1000)
        yield broker.server, broker.queue("T")


def test_the_last_of_equal_messages_counts_though_an_earlier_call_fails_for_a_moment(mending):
    server, queue = mending
    server.command("REPLICAOF", "127.0.0.1", str(NOBODYS_PORT))
    sent_around(server, queue, ("REPLICAOF", "NO", "ONE"))
    assert server.command("ZSCORE", queue.keys.store(0), "m") == 900


def test_the_last_of_equal_messages_counts_though_scripts_were_missing_for_a_moment(mending):
    server, queue = mending
    script = server._scripts[queue.definition.type.send_script]
    server.command("SCRIPT", "FLUSH")
    sent_around(server, queue, ("SCRIPT", "LOAD", script.text))
    assert server.command("ZSCORE", queue.keys.store(0), "m") == 900


def test_a_script_that_fails_in_another_way_is_named(broker):
    with pytest.raises(ScriptFailed, match="note_committed failed"):
        broker.server.pipeline([Call("note_committed", ["k"], ["no number"])])


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"redis_version": "6.2.14"}, (6, 2)),
        ({"redis_version": "7.0.15"}, (7, 0)),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, (7, 2)),
        ({"redis_version": "10.1.0-rc1"}, (10, 1)),
    ],
)
def test_versions_are_read(answer, version):
    assert _version_of(answer) == version


def test_a_server_that_is_too_old_is_refused(server, monkeypatch):
    old = {None: {"redis_version": "6.0.16"}}
    monkeypatch.setattr(Server, "_infos_there", lambda self: old)
    with pytest.raises(
        ServerUnsuitable, match=r"version 6\.0\.16\. Use Redis 6\.2 or later, or Valkey"
    ):
        Server(server._options, patience_s=2)


def test_a_server_that_forgets_everything_is_warned_of_once(own_redis, caplog, monkeypatch):
    # Of thousands of tests in a process, one had a server at the same port.
    monkeypatch.setattr("rmq_spark.redis.server._warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            connect(own_redis.url, patience_s=2).close()
    warnings = [
        r.getMessage() for r in caplog.records if "stores nothing on disk" in r.getMessage()
    ]
    assert len(warnings) == 1
    assert "Set appendonly yes" in warnings[0]


def test_a_socket_file_is_an_address_too(redis_executable, tmp_path):
    path = tmp_path / "redis.sock"
    if len(str(path)) > 100:  # the system's bound for the name of a socket
        path = Path(os.path.relpath(path))
    own = servers.start(redis_executable, unixsocket=str(path))
    try:
        broker = connect(f"unix://{path}?db=2", patience_s=2)
        broker.create("T", "Priority", 1)
        assert broker.queue("T").send([b"m"], priority=50).new == 1
        assert broker.server.client.client_info()["db"] == 2
        broker.close()
    finally:
        own.close()


@pytest.mark.parametrize("query", ["?ssl=1", f"?sec={SECRET}", f"?db={SECRET}"])
def test_a_parameter_of_the_address_that_is_none_is_refused_at_once(own_redis, query):
    with pytest.raises(InvalidOption, match=r"^url or another option") as raised:
        connect(own_redis.url + query, patience_s=60)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_host_that_can_be_none_and_a_tls_option_without_tls_are_refused(own_redis):
    with pytest.raises(InvalidOption, match=r"^url or another option"):
        connect("redis://a..b/0", patience_s=60)
    with pytest.raises(InvalidOption, match="need rediss://"):
        connect(own_redis.url, sslCertReqs="none", patience_s=60)


# -- a cluster


@pytest.fixture
def own_cluster(redis_executable):
    """One node, which has no slots yet."""
    with servers.LocalRedis(
        redis_executable, {**servers.SETTINGS, "cluster-enabled": "yes"}
    ) as own:
        yield own


def form(cluster):
    client = redis.Redis(port=cluster.port)
    client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
    client.close()


def test_a_cluster_that_is_away_is_tried_for_its_time_and_named(caplog):
    url = f"redis://:{SECRET}@127.0.0.1:{NOBODYS_PORT}/0"
    begun = time.monotonic()
    with pytest.raises(
        ServerUnavailable, match=r"cannot be reached .*tried \d times in \d+\.\d s"
    ) as raised:
        connect(url, cluster="true", patience_s=1)
    assert time.monotonic() - begun > 0.1
    assert SECRET not in "".join(traceback.format_exception(raised.value)) + logged(caplog)


def test_a_server_that_is_no_cluster_is_said_to_be_none_at_once(own_redis):
    with pytest.raises(ServerUnsuitable, match=r"is not a cluster\. Leave cluster out\."):
        connect(own_redis.url, cluster="true", patience_s=60)


def test_a_wrong_password_of_a_cluster_is_refused_at_once(locked_redis):
    with pytest.raises(ServerRefused, match="refused the user or password"):
        connect(locked_redis.url, cluster="true", password=WRONG, patience_s=60)


def test_a_user_who_may_not_look_at_the_cluster_is_told_so(own_redis):
    admin = redis.Redis.from_url(own_redis.url)
    admin.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read")
    admin.close()
    with pytest.raises(ServerRefused, match="does not permit this user"):
        connect(own_redis.url, cluster="true", username="reader", password=SECRET, patience_s=60)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/3", "redis://h?db=3", "unix:///run/r.sock"])
def test_an_address_that_no_cluster_has_is_refused(url):
    with pytest.raises(InvalidOption, match=r"^cluster=true cannot be used with"):
        connect(url, cluster="true", patience_s=60)


def test_a_cluster_that_is_being_formed_is_waited_for(own_cluster):
    with pytest.raises(ServerUnavailable, match="slots are not covered"):
        connect(own_cluster.url, cluster="true", patience_s=0.2)
    forming = threading.Timer(0.3, form, [own_cluster])
    forming.start()
    broker = connect(own_cluster.url, cluster="true", patience_s=20)
    forming.join()
    broker.create("T", "Priority", 2)
    assert broker.queue("T").send([b"m"], priority=50).new == 1
    broker.close()


def test_a_cluster_that_goes_away_is_named_and_gone_on_with(own_cluster):
    form(own_cluster)
    broker = connect(own_cluster.url, cluster="true", patience_s=5)
    broker.create("T", "Priority", 2)
    broker.server._patience_s = 0.3
    own_cluster.kill()
    with pytest.raises(ServerUnavailable, match="cannot be reached"):
        broker.queue("T").send([b"m"], priority=50)
    own_cluster.start()  # nodes.conf has kept its slots
    broker.server._patience_s = 20
    broker.create("T", "Priority", 2)
    assert broker.queue("T").send([b"m"], priority=50).new == 1
    broker.close()


def test_a_local_server_that_runs_is_not_started_twice(redis_executable):
    local = servers.start(redis_executable)
    pid = local.pid
    with local as same:
        assert same.pid == pid
    with pytest.raises(ServerUnavailable, match="is not running"):
        _ = local.pid


@NEEDS_PROC
def test_a_port_of_ours_is_none_that_the_system_gives_to_others():
    """Who still asks for a server that has ended must not reach another program in its place."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert max(ports) + 10_000 < lowest  # with the port on which nodes of a cluster talk
    assert len(ports) > 40  # two programs that ask at the same time hardly get the same one


def test_an_interrupt_while_local_servers_start_leaves_none(redis_executable, monkeypatch):
    """Failed before: both went on after the program."""

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalRedis, "_wait", interrupted)
    monkeypatch.setattr(LocalZookeeper, "mode", property(interrupted))
    redis_server, ensemble = LocalRedis(redis_executable), LocalEnsemble()
    for local in (redis_server, ensemble):
        with pytest.raises(KeyboardInterrupt), local:
            pass
    assert (redis_server.runs, ensemble.servers[0].pid) == (False, None)


def test_a_local_server_that_does_not_end_when_asked_is_killed(redis_executable, monkeypatch):
    monkeypatch.setattr("rmq_spark.local.redis.END_TIMEOUT_S", 0.2)
    server = servers.start(redis_executable)
    os.kill(server.pid, signal.SIGSTOP)  # it cannot even notice that it is asked
    server.close()
    assert not server.runs


def test_a_reply_that_an_exception_kept_from_being_read_goes_to_nobody(own_redis, monkeypatch):
    """Failed before: the next command took the reply of the one before, so a refused send counted
    as stored.
    """
    send = Connection.send_packed_command

    def interrupted(connection, command, **kwargs):
        send(connection, command, **kwargs)
        raise KeyboardInterrupt

    with contextlib.closing(connect(own_redis.url)) as broker:
        assert broker.server.command("ECHO", "loads") == b"loads"
        with redis.Redis(port=own_redis.port) as admin:
            admin.client_pause(500)  # a reply that has arrived would be noticed
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "send_packed_command", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    broker.server.command("ECHO", "a")
            assert broker.server.command("ECHO", "b") == b"b"
