"""The queue on a real Redis Cluster: spread over its nodes, moved between them, failed over."""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest
import redis
from redis.crc import key_slot

import rmq_spark
from jobs.flights.redis_cluster import LocalCluster
from rmq_spark.client.receiving import waits
from rmq_spark.errors import (
    Fenced,
    InvalidOption,
    NotReplicated,
    ServerUnavailable,
    ServerUnsuitable,
)
from rmq_spark.protocol import claiming, reading, returning, sending
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.redis.notifications import Notifications
from rmq_spark.redis.routing import Command
from rmq_spark.topics.keys import Keys, consumer_key

from .. import servers
from ..rounds.proxy import Proxy
from ..seeding import LONG_MS, numbered, open_run
from ..waiting import wait_until
from . import moving
from .traffic import TOPIC, Traffic

SLOTS = 32


def claim_all(queue, run, seq=1):
    requests = [ClaimRequest(slot, 0, 2048) for slot in queue.slots]
    return queue.ask(
        claiming.claim,
        requests,
        claiming.Claiming(consumer="c", run=run, seq=seq, lease_ms=LONG_MS),
    )


def test_a_child_of_a_process_that_has_sent_can_send(cluster_broker):
    cluster_broker.create("T", "FixedTime", SLOTS)
    queue = cluster_broker.queue("T")
    for _ in range(20):  # until each node has its thread
        queue.send(numbered(100), fixed_time=1)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: queue.send(numbered(200), fixed_time=1)
    )
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0
    assert queue.figures().store.count == 200


@pytest.mark.parametrize(
    ("topic_type", "value"), [("FixedTime", 1), ("Priority", 50), ("RangeMerge", 1)]
)
def test_every_type_is_sent_claimed_and_committed_on_all_nodes(
    cluster_broker, shared_cluster, topic_type, value
):
    cluster_broker.create("T", topic_type, SLOTS)
    queue = cluster_broker.queue("T")
    sent = numbered(1000)
    name = {"FixedTime": "fixed_time", "Priority": "priority", "RangeMerge": "time_range"}
    assert queue.send(sent, **{name[topic_type]: value}).new == 1000
    time.sleep(0.01)  # until the time range is over
    counts = []
    for node in shared_cluster.masters():
        with shared_cluster.client(node) as client:
            own = [
                slot
                for slot in queue.slots
                if moving.owner_of(shared_cluster, key_slot(queue.keys.store(slot).encode()))
                is node
            ]
            counts.append(sum(client.zcard(queue.keys.store(slot)) for slot in own))
    assert sum(counts) == 1000
    assert min(counts) > 0
    run = open_run(queue, "c", 0)
    claims = claim_all(queue, run)
    assert sorted(content for claim in claims for content in claim.contents) == sent
    again = claim_all(queue, run)
    assert [claim.contents for claim in claims] == [claim.contents for claim in again]
    assert queue.ask(claiming.commit, queue.slots, "c", run, 1).committed == 1000
    assert queue.figures().counters["committed"] == 1000


def test_who_waits_is_woken_by_all_nodes(cluster_broker, monkeypatch):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 3600.0)
    cluster_broker.create("T", "FixedTime", SLOTS)
    queue = cluster_broker.queue("T")
    got = []
    with cluster_broker.consumer("T", "a") as consumer:
        assert len(consumer.poll(wait="10ms")) == 0
        wait_until(lambda: consumer._waiter._notifications.hears_all, "wake-ups of all nodes")
        for content in numbered(100):
            queue.send([content], fixed_time=1)
            batch = consumer.poll(wait="1h")
            got += [message.content for message in batch]
            batch.commit()
    assert got == numbered(100)


def test_who_waits_is_woken_by_the_node_to_which_a_slot_has_moved(own_cluster, monkeypatch):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 3600.0)
    with rmq_spark.connect(own_cluster.url, cluster="true") as broker:
        broker.create("T", "FixedTime", 1)
        queue = broker.queue("T")
        hash_slot = key_slot(queue.keys.store(0).encode())
        source = moving.owner_of(own_cluster, hash_slot)
        target = next(node for node in own_cluster.masters() if node is not source)
        with broker.consumer("T", "a") as consumer:
            assert len(consumer.poll(wait="10ms")) == 0
            wakeups = consumer._waiter._notifications
            wait_until(lambda: wakeups.hears_all, "wake-ups")
            moving.begin(own_cluster, hash_slot, source, target)
            moving.move_keys(own_cluster, hash_slot, source, target)
            moving.finish(own_cluster, hash_slot, source, target)
            if wakeups._sharded:  # before Redis 7.0, each node passes on what the others hear
                wait_until(lambda: not wakeups.hears_all, "the move is noticed")
                wait_until(lambda: wakeups.hears_all, "wake-ups of the other node")
            consumer.poll(wait="10ms")
            queue.send([b"m"], fixed_time=1)
            assert [message.content for message in consumer.poll(wait="1h")] == [b"m"]


def test_each_node_has_one_thread_for_wake_ups_however_slots_have_moved(
    cluster_broker, shared_cluster
):
    def threads():
        return {thread for thread in threading.enumerate() if thread.name == "rmq-wakeups"}

    cluster_broker.create("T", "FixedTime", 16)
    queue = cluster_broker.queue("T")
    stores, before = [queue.keys.store(slot) for slot in queue.slots], threads()
    wakes, masters = Notifications(queue.server, stores), shared_cluster.masters()
    if not wakes._sharded:
        pytest.skip("Before Redis 7.0, each node passes on what the others hear.")

    def each_hears_its_own():
        for node in masters:
            with shared_cluster.client(node) as client:
                if set(client.pubsub_shardchannels()) != {s for s in stores if owners[s] is node}:
                    return False
        return wakes.hears_all

    choice, owners = random.Random(1), {}
    for _ in range(2):
        for store in stores:
            hash_slot, owners[store] = key_slot(store.encode()), choice.choice(masters)
            source = moving.owner_of(shared_cluster, hash_slot)
            if source is not owners[store]:
                moving.begin(shared_cluster, hash_slot, source, owners[store])
                moving.finish(shared_cluster, hash_slot, source, owners[store])
        wait_until(each_hears_its_own, "wake-ups of all nodes")

    wait_until(lambda: len(threads() - before) == len(masters), "one thread for each node")
    wakes.close()


def test_who_waits_looks_into_some_slots_of_all_nodes(cluster_broker):
    cluster_broker.create("T", "FixedTime", SLOTS)
    queue = cluster_broker.queue("T")
    queue.ask(sending.send, {5: [1000, b"m"]})
    found = queue.ask(reading.stirred, range(3, 20), one_node=False)
    assert {slot for slot, stir in found.items() if stir is reading.Stir.DUE} == {5}


def test_what_people_call_works_on_all_nodes(cluster_broker):
    cluster_broker.create("T", "FixedTime", SLOTS, max_retries=0)
    queue = cluster_broker.queue("T")
    queue.send(numbered(100), fixed_time=1)
    assert queue.ask(reading.any_due, queue.slots, one_node=False)
    assert abs(queue.now_ms() - time.time() * 1000) < 60_000
    cluster_broker.alter("T", paused=True)
    assert {slot.due for slot in queue.ask(reading.due, queue.slots, "c")} == {0}
    cluster_broker.alter("T", paused=False)
    assert sum(slot.due for slot in queue.ask(reading.due, queue.slots, "c")) == 100
    run = open_run(queue, "c", 0)
    claims = claim_all(queue, run)
    assert queue.ask(returning.give_back, queue.slots, "c", run) == 100
    assert queue.figures().dead.count == 100
    assert queue.ask(sending.requeue,
        {claim.slot: [v for c in claim.contents for v in (20, c)] for claim in claims}
    ) == 100  # fmt: skip
    claim_all(queue, run, seq=2)
    queue.ask(claiming.release, queue.slots, "c", run)
    assert queue.expire() == 100
    assert queue.figures().store.count == 100
    cluster_broker.delete("T")
    assert cluster_broker.topics() == []


def test_a_function_holds_its_group_on_all_nodes(cluster_broker):
    cluster_broker.create("T", "FixedTime", SLOTS, rate="1/h", burst=3, rate_by="slot")
    queue = cluster_broker.queue("T")
    queue.send(numbered(200), fixed_time=1)

    def hold(message):
        raise rmq_spark.Hold("1h")

    with (
        cluster_broker.consumer("T", "b") as other,
        cluster_broker.listen("T", "a", hold, workers=1) as listener,
    ):
        wait_until(lambda: listener.snoozed == 1, "the hold")
        wait_until(lambda: not queue.figures().prepare.count, "the others, given back")
        assert len(other.poll(500)) == 0
        listener.stop()
        cluster_broker.resume("T")
        taken = Counter(message.slot for message in other.poll(500))
        assert len(taken) > SLOTS / 2
        assert max(taken.values()) == 3, "each slot has a limit of its own"
    cluster_broker.delete("T")
    assert cluster_broker.topics() == []


def test_an_error_of_one_node_leaves_what_others_did(cluster_broker):
    cluster_broker.create("T", "FixedTime", SLOTS)
    queue = cluster_broker.queue("T")
    queue.send(numbered(500), fixed_time=1)
    run = open_run(queue, "c", 0)
    newer = queue.ask(
        claiming.claim,
        [ClaimRequest(3, 0, 9)],
        claiming.Claiming(consumer="c", run=run + 1, seq=1, lease_ms=LONG_MS),
    )
    with pytest.raises(Fenced):
        claim_all(queue, run)
    held = queue.figures().prepare.count
    # Those of the same round trip: claims whose sizes are not known are made 16 at a time.
    others = sum(queue.definition.slot_of(one) in {*range(16)} - {3} for one in numbered(500))
    assert held == others + len(newer[0].contents)


def test_scripts_that_a_node_has_forgotten_are_loaded_again(cluster_broker, shared_cluster):
    cluster_broker.create("T", "FixedTime", SLOTS)
    queue = cluster_broker.queue("T")
    queue.send(numbered(100), fixed_time=1)
    with shared_cluster.client(shared_cluster.masters()[1]) as client:
        client.script_flush()
    assert queue.send(numbered(100), fixed_time=2).merged == 100


def test_a_hash_slot_on_its_way_is_found_at_either_end(cluster_broker, shared_cluster):
    """MOVED is followed at once, ASK too; TRYAGAIN is waited for."""
    cluster_broker.create("T", "FixedTime", 1)
    queue = cluster_broker.queue("T")
    queue.send(numbered(100), fixed_time=1)
    (hash_slot,) = moving.hash_slots([queue.keys.store(0)])
    source = moving.owner_of(shared_cluster, hash_slot)
    target = next(node for node in shared_cluster.masters() if node is not source)
    way = (shared_cluster, hash_slot, source, target)
    moving.begin(*way)
    with shared_cluster.client(source) as client:
        one = queue.keys.store(0)
        client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", one)
    assert queue.server.commands([("ZCARD", one)]) == [100], "an ASK was not followed"
    finishing = threading.Timer(0.5, lambda: (moving.move_keys(*way), moving.finish(*way)))
    finishing.start()
    run = open_run(queue, "c", 0)
    (claim,) = claim_all(queue, run)
    finishing.join()
    assert claim.contents == numbered(100)
    assert queue.ask(claiming.commit, [0], "c", run, 1).committed == 100
    moving.begin(shared_cluster, hash_slot, target, source)
    moving.move_keys(shared_cluster, hash_slot, target, source)
    moving.finish(shared_cluster, hash_slot, target, source)
    assert queue.figures().counters["committed"] == 100, "a MOVED was not followed"


def test_the_first_hash_slot_of_a_new_master_is_found_on_its_way(growing_cluster):
    """CLUSTER SLOTS does not list the master yet, and it has no scripts."""
    with rmq_spark.connect(growing_cluster.url, cluster="true", patience_s=1) as broker:
        broker.create("T", "FixedTime", 1)
        queue = broker.queue("T")
        first = open_run(queue, "c", 0)
        way = (growing_cluster, *moving.hash_slots([consumer_key("c")]), *growing_cluster.nodes)
        moving.begin(*way)
        moving.move_keys(*way)
        second = open_run(queue, "c", 0)
        moving.finish(*way)
        assert first < second < open_run(queue, "c", 0)


def test_a_node_that_hangs_does_not_stop_requests_to_the_others(executable):
    settings = {**servers.SETTINGS, "cluster-require-full-coverage": "no"}
    options = {"cluster": "true", "socketTimeout": "30s"}
    with (
        LocalCluster(3, 0, executable, settings) as cluster,
        rmq_spark.connect(cluster.url, **options) as broker,
    ):
        nodes, answered = broker.server._nodes, []
        key_on = {nodes._node_of(key).port: key for key in map(str, range(100))}
        one, other, hangs = (key_on[node.port] for node in cluster.nodes)

        def ask(*keys):
            return nodes.run([Command(key, ("TYPE", key)) for key in keys], None)

        ask(one, other, hangs)
        os.kill(cluster.nodes[2].pid, signal.SIGSTOP)
        callers = [
            threading.Thread(target=lambda: answered.append(ask(one, hangs))) for _ in range(5)
        ]
        for caller in callers:
            caller.start()
        in_use = nodes._node_of(hangs).redis_connection.connection_pool._in_use_connections
        wait_until(lambda: len(in_use) >= 3, "who waits for the node that hangs")
        assert ask(one, other) == [b"none", b"none"]
        assert answered == []
        os.kill(cluster.nodes[2].pid, signal.SIGCONT)
        for caller in callers:
            caller.join()


@pytest.mark.long
def test_nothing_is_lost_or_doubled_while_hash_slots_move(own_cluster):
    slots = 16
    with Traffic(own_cluster.url, slots, cluster="true") as traffic:
        for hash_slot in moving.hash_slots([Keys(TOPIC).store(slot) for slot in range(slots)]):
            source = moving.owner_of(own_cluster, hash_slot)
            target = next(node for node in own_cluster.masters() if node is not source)
            way = (own_cluster, hash_slot, source, target)
            moving.begin(*way)
            moving.move_keys(*way)
            time.sleep(0.05)  # for calls that find some keys here and others there
            moving.move_keys(*way)
            moving.finish(*way)
        traffic.go_on()
    assert (traffic.lost, traffic.repeated) == (set(), 0)


@pytest.mark.long
def test_a_killed_master_loses_nothing_that_replicas_have_confirmed(own_cluster):
    with Traffic(own_cluster.url, 16, cluster="true", minReplicas="1") as traffic:
        victim = own_cluster.masters()[1]
        heir = own_cluster.replica_of(victim)
        victim.kill()
        wait_until(lambda: own_cluster.role(heir) == "master", "a replica takes over")
        # Sends to its slots ask for a replica that confirms: that is the old master now.
        victim.start()
        traffic.go_on()
        assert own_cluster.role(victim) == "slave"
    assert traffic.lost == set()


@pytest.mark.long
def test_a_master_that_hangs_is_replaced_and_takes_no_part_when_it_wakes(own_cluster):
    options = {"cluster": "true", "minReplicas": "1", "socketTimeout": "3s"}
    with Traffic(own_cluster.url, 16, **options) as traffic:
        victim = own_cluster.masters()[0]
        heir = own_cluster.replica_of(victim)
        os.kill(victim.pid, signal.SIGSTOP)
        wait_until(lambda: own_cluster.role(heir) == "master", "a replica takes over")
        os.kill(victim.pid, signal.SIGCONT)
        traffic.go_on()
        assert own_cluster.role(victim) == "slave"
    assert traffic.lost == set()


def test_too_few_replicas_are_named_and_what_was_sent_is_there(own_cluster):
    options = {"cluster": "true", "minReplicas": "2", "replicaTimeout": "1s"}
    broker = rmq_spark.connect(own_cluster.url, **options)
    broker.create("T", "FixedTime", 1)
    with pytest.raises(
        NotReplicated, match=r"1 of 2 replicas confirmed it within 1000 ms.* lower minReplicas"
    ):
        broker.queue("T").send([b"m"], fixed_time=1)
    broker.close()
    patient = rmq_spark.connect(own_cluster.url, cluster="true", minReplicas="1")
    assert patient.queue("T").send([b"m"], fixed_time=1).merged == 1
    patient.close()


def test_a_group_goes_and_a_topic_is_deleted_though_no_replica_confirms(shared_cluster):
    options = {"cluster": "true", "minReplicas": "1", "replicaTimeout": "50ms"}
    broker = rmq_spark.connect(shared_cluster.url, key_prefix="unconfirmed:", **options)
    broker.create("T", "FixedTime", 2, groups=("", "g"))
    with pytest.raises(NotReplicated):
        broker.queue("T").send(numbered(4), fixed_time=1)
    assert broker.remove_group("T", "g", drop=True) == 4
    broker.delete("T")
    with shared_cluster.client(shared_cluster.masters()[0]) as client:
        assert client.keys("*unconfirmed:*") == []
    broker.close()


def test_what_was_answered_is_not_repeated_when_a_script_cannot_be_loaded_again(
    cluster_broker, shared_cluster, monkeypatch
):
    cluster_broker.create("T", "FixedTime", SLOTS)
    queue = cluster_broker.queue("T")
    queue.send(numbered(1), fixed_time=1)
    with shared_cluster.client(shared_cluster.masters()[0]) as client:
        client.script_flush()
    load, failing = queue.server._load, [redis.ConnectionError("cut off")]

    def load_later():
        if failing:
            raise failing.pop()
        load()

    monkeypatch.setattr(queue.server, "_load", load_later)
    queue.send(numbered(200), fixed_time=1)
    assert queue.figures().counters["accepted"] == 201


def test_a_cluster_all_of_whose_addresses_are_new_is_found_by_the_name_of_its_url(executable):
    """As after a rolling restart in Kubernetes: a name leads to some node, all IPs are new."""
    with LocalCluster(3, 0, executable, servers.SETTINGS) as cluster:
        ports = [node.port for node in cluster.nodes]
        name, old, new = Proxy(ports[0]), Proxy(*ports), Proxy(*ports)

        def announced(node):
            listed = cluster.client(node).execute_command("CLUSTER SLOTS")
            return {place[1] for _, _, *places in listed for place in places}

        def announce(proxy):
            for node, port in zip(cluster.nodes, proxy.ports, strict=True):
                client = cluster.client(node)
                client.config_set("cluster-announce-bus-port", node.port + 10_000)
                client.config_set("cluster-announce-port", port)
            for node in cluster.nodes:
                wait_until(lambda node=node: announced(node) == set(proxy.ports), "all to know")

        announce(old)
        broker = rmq_spark.connect(f"redis://127.0.0.1:{name.port}", cluster="true")
        broker.create("T", "FixedTime", SLOTS)
        with broker, broker.consumer("T", "a") as consumer:
            broker.queue("T").send(numbered(100), fixed_time=1)
            announce(new)
            old.cut()
            assert broker.queue("T").send([b"more"], fixed_time=1).new == 1
            assert consumer.poll(500).commit() == 101


@pytest.mark.long
def test_a_cluster_of_which_nothing_is_left_is_named(own_cluster):
    broker = rmq_spark.connect(own_cluster.url, cluster="true", patience_s=1)
    broker.create("T", "FixedTime", SLOTS)
    queue = broker.queue("T")
    for node in own_cluster.nodes:
        node.kill()
    with pytest.raises(ServerUnavailable, match="cannot be reached"):
        queue.send(numbered(100), fixed_time=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"minReplicas": "-1"}, "^minReplicas='-1' is not accepted"),
        ({"minReplicas": "many"}, "^minReplicas='many' is not accepted"),
        ({"replicaTimeout": "1"}, "^replicaTimeout="),
        ({"replicaTimeout": "0s"}, "Accepted: a duration, 1ms to 10s"),
        ({"replicaTimeout": "11s"}, "Accepted: a duration, 1ms to 10s"),
        ({"minReplicas": "1", "socketTimeout": "1s"}, "a socketTimeout longer than"),
        ({"minReplicas": "99999999999999999999"}, "0 to 1000"),
    ],
)
def test_options_of_replicas_are_checked(options, text):
    with pytest.raises(InvalidOption, match=text):
        rmq_spark.connect("redis://127.0.0.1:1/0", **options)


def test_a_node_of_a_cluster_is_told_from_a_server_of_its_own(shared_cluster):
    with pytest.raises(ServerUnsuitable, match=r"is part of a Redis Cluster. Set"):
        rmq_spark.connect(shared_cluster.url, patience_s=1)
