"""Errors of Redis that pass, and what an error says when they did not pass in time."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.errors import ScriptFailed, ServerUnavailable

from ..logs import logged
from ..not_saving import not_saving, save_again
from ..servers import NOBODYS_PORT
from ..waiting import wait_until


@pytest.fixture
def replica(own_redis):
    """A server that is a replica of a master that is away. It answers reads."""
    admin = redis.Redis.from_url(own_redis.url)
    admin.execute_command("REPLICAOF", "127.0.0.1", NOBODYS_PORT)
    yield admin
    admin.execute_command("REPLICAOF", "NO", "ONE")
    admin.close()


def test_a_replica_that_takes_no_writes_is_named_with_what_to_check(own_redis, replica):
    broker = connect(own_redis.url, patience_s=0.2)
    with pytest.raises(ServerUnavailable, match="is a replica and takes no writes") as raised:
        broker.create("T", "FixedTime", 1)
    text = str(raised.value)
    assert "Check that url names the master, or set" in text


def test_a_replica_that_becomes_the_master_in_time_takes_the_write(own_redis, replica):
    broker = connect(own_redis.url, patience_s=20)
    promotion = threading.Timer(0.3, replica.execute_command, ("REPLICAOF", "NO", "ONE"))
    promotion.start()
    assert broker.create("T", "FixedTime", 1).name == "T"
    promotion.join()
    assert broker.queue("T").send(["a"], fixed_time=0).new == 1


def test_a_script_waits_for_the_promotion_of_its_server(own_redis):
    """Redis before 7.0 refuses a write within the script."""
    queue, admin = used(own_redis, patience_s=20)
    admin.execute_command("REPLICAOF", "127.0.0.1", NOBODYS_PORT)
    promotion = threading.Timer(0.3, admin.execute_command, ("REPLICAOF", "NO", "ONE"))
    promotion.start()
    assert queue.send(["a"], fixed_time=0).new == 1
    promotion.join()


def test_a_script_on_a_replica_is_named_with_what_to_check(own_redis):
    queue, admin = used(own_redis, patience_s=0.2)
    admin.execute_command("REPLICAOF", "127.0.0.1", NOBODYS_PORT)
    with pytest.raises(ServerUnavailable, match="is a replica and takes no writes"):
        queue.send(["a"], fixed_time=0)
    admin.execute_command("REPLICAOF", "NO", "ONE")


def test_an_outage_is_told_once_however_many_calls_fail_in_it(own_redis, caplog):
    """Failed before: twice for each call, so several times a second with a short patience."""
    queue, admin = used(own_redis, patience_s=0.1)
    caplog.clear()
    with not_saving(admin):
        for _ in range(3):
            with pytest.raises(ServerUnavailable):
                queue.send(["a"], fixed_time=0)
    assert queue.send(["a"], fixed_time=0).new == 1
    [line] = logged(caplog, queue.server.address).splitlines()
    assert line.startswith(f"rmq: retrying Redis at {own_redis.url}")


def test_too_few_replicas_are_waited_for(own_redis):
    queue, admin = used(own_redis, patience_s=20)
    admin.config_set("min-replicas-to-write", 1)
    change = threading.Timer(0.3, admin.config_set, ("min-replicas-to-write", 0))
    change.start()
    assert queue.send(["a"], fixed_time=0).new == 1
    change.join()


def test_the_slow_script_of_another_client_is_waited_for(own_redis):
    queue, admin = used(own_redis, patience_s=20)
    admin.config_set("lua-time-limit", 10)
    slow = threading.Thread(target=endless_script, args=(own_redis.url,))
    slow.start()
    wait_until(lambda: is_busy(admin), "the slow script")
    end = threading.Timer(0.3, admin.script_kill)
    end.start()
    assert queue.send(["a"], fixed_time=0).new == 1
    end.join()
    slow.join()


def test_the_end_of_an_outage_is_told(own_redis, caplog):
    """Failed before: the last line was that it retries."""
    queue, admin = used(own_redis, patience_s=20)
    caplog.clear()
    address = queue.server.address

    def repaired():
        wait_until(lambda: "retrying" in logged(caplog, address), "the outage")
        save_again(admin)

    with not_saving(admin):
        repair = threading.Thread(target=repaired)
        repair.start()
        assert queue.send(["a"], fixed_time=0).new == 1
        repair.join()
    queue.send(["b"], fixed_time=0)
    begins, ends = logged(caplog, address).splitlines()
    assert begins.startswith(f"rmq: retrying Redis at {own_redis.url}")
    assert re.fullmatch(rf"rmq: Redis at {re.escape(address)} answers again after \d+\.\d s", ends)


def test_a_server_that_cannot_save_for_a_moment_is_waited_for(own_redis):
    queue, admin = used(own_redis, patience_s=20)
    with not_saving(admin):
        repair = threading.Timer(0.3, save_again, (admin,))
        repair.start()
        assert queue.send(["a"], fixed_time=0).new == 1
        repair.join()


def test_a_server_that_cannot_save_is_named_with_what_to_check(own_redis):
    queue, admin = used(own_redis, patience_s=0.2)
    with (
        not_saving(admin),
        pytest.raises(ServerUnavailable, match="cannot save its data") as raised,
    ):
        queue.send(["a"], fixed_time=0)
    assert "Check the free space and the permissions of its folder" in str(raised.value)


def used(own_redis, patience_s):
    """A queue whose scripts are loaded, and a client of an administrator."""
    broker = connect(own_redis.url, patience_s=patience_s)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send(["loads the scripts"], fixed_time=0)
    return queue, redis.Redis.from_url(own_redis.url)


def endless_script(url):
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ResponseError, match="killed"):
        client.eval("while true do end", 0)


def is_busy(client):
    try:
        client.get("any")
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


def test_a_message_longer_than_the_server_takes_is_named_so(own_redis):
    """Seen: "send_at failed: Protocol error: invalid bulk length"."""
    with connect(own_redis.url) as broker, redis.Redis.from_url(own_redis.url) as admin:
        broker.create("T", "FixedTime", 1)
        admin.config_set("proto-max-bulk-len", 1024 * 1024)
        with pytest.raises(ScriptFailed, match=r"longer than the server's proto-max-bulk-len"):
            broker.queue("T").send([b"x" * 2 * 1024 * 1024], fixed_time=0)
        assert broker.queue("T").send([b"x"], fixed_time=0).new == 1


def test_many_threads_tell_an_outage_once(own_redis, caplog):
    """Seen: 48 lines for one outage; and a call that had succeeded failed with a TypeError."""
    queue, admin = used(own_redis, patience_s=60)
    caplog.clear()

    def send(number):
        return queue.send([f"m{number}"], fixed_time=0).new

    with ThreadPoolExecutor(16) as threads:
        with not_saving(admin):
            sent = [threads.submit(send, number) for number in range(64)]
            wait_until(lambda: "retrying" in logged(caplog, queue.server.address), "the outage")
        assert sum(one.result() for one in sent) == 64
    lines = logged(caplog, queue.server.address).splitlines()
    assert sum("retrying Redis" in line for line in lines) == 1
    assert sum("answers again" in line for line in lines) == 1
