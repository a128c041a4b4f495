"""Copies of a busy process: none waits for a lock that a thread of the parent held."""

import gc
import json
import multiprocessing
import subprocess
import sys
import weakref

import pytest

from jobs.flights.redis_cluster import LocalCluster
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.server import shared_server

from .. import servers
from ..cluster.sentinels import Sentinels

PROGRAM = """
import os, sys, threading, time
import rmq_spark

url, cluster = sys.argv[1:]
broker = rmq_spark.connect(url, **({"cluster": "true"} if cluster else {}))
broker.create("T", "FixedTime", 4)
queue = broker.queue("T")

def send_forever():
    while True:
        queue.send(["parent"], fixed_time=0)

for _ in range(8):
    threading.Thread(target=send_forever, daemon=True).start()
listener = broker.listen("T", "a", lambda message: None, workers=2)
threading.Thread(target=listener.run, daemon=True).start()
while not listener.succeeded:
    time.sleep(0.01)
children = []
for number in range(12):
    child = os.fork()
    if not child:
        queue.send(["child %d" % number], fixed_time=10**13)
        os._exit(0)
    children.append(child)
ends = time.monotonic() + 60
done = []
while len(done) < 12 and time.monotonic() < ends:
    for child in set(children) - set(done):
        if os.waitpid(child, os.WNOHANG)[0]:
            done.append(child)
    time.sleep(0.05)
for child in set(children) - set(done):
    os.kill(child, 9)
pages = (page for slot in queue.slots for page in queue.pages("store", slot))
names = {name for page in pages for name in page.contents}
print(len(done), sum(name.startswith(b"child") for name in names))
os._exit(0)
"""


HELD = """
import contextlib, json, os, signal, sys, threading
import rmq_spark

broker = rmq_spark.connect(**json.loads(sys.argv[1]))
broker.create("T", "FixedTime", 4)
queue = broker.queue("T")
queue.send(["parent"], fixed_time=0)
client, are_held = broker.server.client, threading.Event()
if broker.server.is_cluster:
    clients = [node.redis_connection for node in client.get_nodes()]
elif broker.server.options.sentinels:
    clients = [client, *client.connection_pool.sentinel_manager.sentinels]
else:
    clients = [client]

def hold_all():
    with contextlib.ExitStack() as held:
        held.enter_context(broker.server._loading)
        if broker.server.is_cluster:
            held.enter_context(client.nodes_manager._lock)
        for pool in (each.connection_pool for each in clients):
            for lock in (pool._lock, pool._fork_lock, pool._event_dispatcher._lock):
                held.enter_context(lock)
        are_held.set()
        threading.Event().wait()

threading.Thread(target=hold_all, daemon=True).start()
are_held.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    print(queue.send(["child"], fixed_time=0).new, flush=True)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(params=["one server", "Sentinels", "a cluster"])
def options(request, redis_executable):
    if request.param == "Sentinels":
        with Sentinels(redis_executable) as sentinels:
            yield sentinels.options
    elif request.param == "a cluster":
        with LocalCluster(1, 0, redis_executable, servers.SETTINGS) as cluster:
            yield {"url": cluster.url, "cluster": "true"}
    else:
        with servers.local(redis_executable) as own:
            yield {"url": own.url}


def test_a_lock_that_a_thread_held_at_the_fork_is_free_in_the_child(options):
    """Failed before: the child waited for ever."""
    done = subprocess.run(
        [sys.executable, "-c", HELD, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_child_has_shared_servers_of_its_own_and_drops_those_of_its_parent(own_redis):
    options = parse_connection({"url": own_redis.url})
    parents = weakref.ref(shared_server(options))

    def check():
        gc.collect()
        assert parents() is None
        assert shared_server(options).now_ms() > 0

    child = multiprocessing.get_context("fork").Process(target=check)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


def test_children_of_a_busy_process_send(own_redis):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, own_redis.url, ""],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.stdout == "12 12\n", done.stderr
