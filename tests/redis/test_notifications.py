"""Wake-ups as a reader receives them: over connections that break, and for users who may not."""

import threading

import pytest

from rmq_spark.client import Broker, connect
from rmq_spark.redis import notifications
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.notifications import Notifications
from rmq_spark.redis.server import Server

from ..logs import logged
from ..rounds.proxy import Proxy
from ..seeding import FAR_MS, LONG_MS
from ..waiting import wait_until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(notifications, "_READ_S", 0.05)
    monkeypatch.setattr(notifications, "_RECONNECT_S", 0.05)


@pytest.fixture
def queue(broker):
    broker.create("T", "FixedTime", 2)
    return broker.queue("T")


@pytest.fixture
def hear(queue):
    made = []

    def hearing(server=None):
        stores = [queue.keys.store(slot) for slot in queue.slots]
        made.append(Notifications(server or queue.server, stores))
        return made[-1]

    yield hearing
    for each in made:
        each.close()


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "rmq-wakeups"}


def woken_by(wakes, count=1):
    """The stores that were woken, with their times, once there are so many."""
    found = {}
    while len(found) < count:
        wakes.wait(30)
        found |= wakes.take()[0]
    return found


def test_first_it_tells_that_it_hears_all_stores(queue, hear):
    wakes = hear()
    wakes.wait(30)
    assert wakes.hears_all
    assert wakes.take() == ({}, {queue.keys.store(0), queue.keys.store(1)})
    assert wakes.take() == ({}, set())


def test_of_several_wake_ups_of_a_store_the_first_time_counts(queue, hear):
    wakes = hear()
    wakes.wait(30)
    wakes.take()
    for delay in (3 * LONG_MS, LONG_MS, 0):
        queue.send([b"%d" % delay], delay=delay, slot_basis=b"one")
    store = queue.keys.store(queue.definition.slot_of(b"one"))
    found = woken_by(wakes)
    assert list(found) == [store]


def test_a_connection_that_breaks_is_made_again_and_told_of(queue, hear, server):
    address = server._options.url.rsplit(":", 1)[1]
    proxy = Proxy(int(address.split("/")[0]))
    through = Server(parse_connection({"url": f"redis://127.0.0.1:{proxy.port}/0"}), patience_s=1)
    try:
        wakes = hear(through)
        wait_until(lambda: wakes.hears_all, "the first connection")
        wakes.take()
        proxy.cut()
        wait_until(lambda: not wakes.hears_all, "the cut is noticed")
        queue.send([b"unheard"], fixed_time=1000)
        proxy.mend()
        wait_until(lambda: wakes.hears_all, "the next connection")
        assert wakes.take() == ({}, {queue.keys.store(0), queue.keys.store(1)})
        queue.send([b"sooner"], fixed_time=500, slot_basis=b"unheard")
        assert woken_by(wakes)
    finally:
        through.close()
        proxy.close()


@pytest.mark.parametrize("how", ["the wake-ups", "the server"])
def test_the_threads_end_when_something_is_closed(own_redis, how):
    server = Server(parse_connection({"url": own_redis.url}), patience_s=1)
    before = threads()
    wakes = Notifications(server, ["a", "b"])
    wait_until(lambda: wakes.hears_all, "they listen")
    assert len(threads() - before) == 1
    (wakes if how == "the wake-ups" else server).close()
    wait_until(lambda: threads() <= before, "the end of the thread")
    wakes.wait(LONG_MS if how == "the wake-ups" else 0)  # returns at once
    server.close()


def test_a_user_who_may_not_subscribe_is_told_once_what_it_lacks(own_redis, caplog):
    admin = connect(own_redis.url)
    missing = ["-subscribe", "-ssubscribe"][: 1 + (admin.server.version >= (7, 0))]
    admin.server.client.execute_command(
        "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", *missing
    )
    url = own_redis.url.replace("redis://", "redis://reader:pw@")
    reader = connect(url)
    before = threads()
    wakes = Notifications(reader.server, ["a"])
    wait_until(lambda: threads() <= before and logged(caplog), "the thread gives up")
    assert not wakes.hears_all
    (line,) = (line for line in logged(caplog).splitlines() if "wake-ups" in line)
    assert "subscribe +ping, and & with the pattern" in line
    assert "pw@" not in line
    reader.close()
    admin.close()


def test_without_stores_there_is_nothing_to_hear(server):
    before = threads()
    wakes = Notifications(server, [])
    assert wakes.hears_all
    assert threads() <= before
    wakes.wait(0)
    assert wakes.take() == ({}, set())
    wakes.close()


def test_a_message_far_in_the_future_is_heard_of(queue, hear):
    wakes = hear()
    wakes.wait(30)
    wakes.take()
    queue.send([b"m"], fixed_time=FAR_MS)
    (at_s,) = woken_by(wakes).values()
    assert at_s > 10**9


def test_brokers_of_one_server_do_not_hear_each_other(server, queue, hear):
    wakes = hear()
    wakes.wait(30)
    wakes.take()
    other = Broker(server, key_prefix="another:")
    other.create("T", "FixedTime", 2)
    other.queue("T").send([b"m"], fixed_time=1000)
    queue.send([b"m"], fixed_time=1000)
    assert set(woken_by(wakes)) == {queue.keys.store(queue.definition.slot_of(b"m"))}
    other.delete("T")
