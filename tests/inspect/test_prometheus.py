"""The figures of queues as Prometheus gets them, and the dashboard that draws them."""

import json
import re
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rmq_spark import each_message
from rmq_spark.client import connect
from rmq_spark.inspect.checks import FAIL, check_server
from rmq_spark.inspect.prometheus import (
    FunctionCollector,
    ListenerCollector,
    QueueCollector,
    dashboard_json,
)
from rmq_spark.inspect.queries import QueryMetrics
from rmq_spark.redis import server as server_module
from rmq_spark.topics.keys import schedules_key, topics_key

from ..seeding import FAR_MS
from ..waiting import wait_until


@pytest.fixture
def samples(broker):
    """All samples, by name and labels, as they are when it is called."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))

    def read():
        families = text_string_to_metric_families(generate_latest(registry).decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    return read


def of(topic, group="default", **more):
    return tuple(sorted({"topic": topic, "group": group, **more}.items()))


def let_time_pass(queue, contents, due_ms):
    """Leaves a slot as it is when messages that were sent before their time wait beyond it."""
    for content in contents:
        store = queue.keys.store(queue.definition.slot_of(content))
        assert queue.server.client.zadd(store, {content: due_ms}, xx=True, ch=True) == 1


def test_queues_counters_and_lateness_are_told_by_topic_and_group(broker, samples):
    broker.create("Orders", "FixedTime", 4, groups=["", "audit"], max_retries=0)
    queue = broker.queue("Orders")
    queue.send(["a", "b", "c"], fixed_time=FAR_MS)
    for each in (queue, broker.queue("Orders", group="audit")):
        let_time_pass(each, [b"a", b"b", b"c"], queue.now_ms() - 90_000)
    with broker.consumer("Orders", "clerk") as clerk:
        batch = clerk.poll(2)
        batch.rollback(list(batch)[:1], reason=KeyError("vat"))
        batch.commit()
    found = samples()
    assert found["rmq_up", ()] == 1
    assert found["rmq_messages", of("Orders", queue="store")] == 1
    assert found["rmq_messages", of("Orders", queue="dead")] == 1
    assert found["rmq_deaths_total", of("Orders", reason="KeyError")] == 1
    assert found["rmq_events_total", of("Orders", event="expired")] == 0
    assert found["rmq_messages", of("Orders", "audit", queue="store")] == 3
    assert found["rmq_events_total", of("Orders", event="committed")] == 1
    assert found["rmq_events_total", of("Orders", event="rolledBack")] == 1
    assert found["rmq_due_messages", of("Orders")] == 1
    assert 90 <= found["rmq_oldest_due_seconds", of("Orders")] < 3600
    assert found["rmq_consumers", of("Orders")] == 1
    assert found["rmq_held_seconds", of("Orders")] == 0
    assert found["rmq_paused", of("Orders")] == 0


def test_a_hold_is_told_until_it_ends(broker, samples):
    broker.create("Orders", "FixedTime", 4)
    broker.hold("Orders", "1h")
    assert 3500 < samples()["rmq_held_seconds", of("Orders")] <= 3600


def test_a_pause_is_told_of_the_groups_that_it_stops(broker, samples):
    """Failed before: the alert that nobody reads began in every pause."""
    broker.create("Orders", "FixedTime", 4, groups=["a", "b"])
    broker.pause("Orders", group="a")
    assert [samples()["rmq_paused", of("Orders", group)] for group in "ab"] == [1, 0]


@pytest.mark.parametrize("time", [0, 16, 17, 1000, datetime(2000, 1, 1, tzinfo=UTC)])
def test_a_message_that_is_due_at_once_is_late_only_since_it_was_sent(broker, samples, time):
    broker.create("Orders", "FixedTime", 1)
    broker.queue("Orders").send(["a"], fixed_time=time)
    assert samples()["rmq_due_messages", of("Orders")] == 1
    assert samples()["rmq_oldest_due_seconds", of("Orders")] < 3600


def test_what_expires_is_counted(broker, samples):
    broker.create("Orders", "FixedTime", 1)
    broker.create("Buried", "FixedTime", 1, on_expiry="dead")
    for name in ("Orders", "Buried"):
        broker.queue(name).send(["a", "b"], fixed_time=FAR_MS, time_to_live=1)
        let_time_pass(broker.queue(name), [b"a", b"b"], 1000)
        with broker.consumer(name, "clerk") as clerk:
            assert len(clerk.poll()) == 0
    found = samples()
    assert found["rmq_events_total", of("Orders", event="expired")] == 2
    assert found["rmq_events_total", of("Buried", event="expired")] == 0
    assert found["rmq_deaths_total", of("Buried", reason="expired")] == 2


def test_what_is_forgotten_is_counted(broker, samples):
    broker.create("Orders", "FixedTime", 1, dead_retention="1h")
    queue = broker.queue("Orders")
    queue.server.command("ZADD", queue.keys.dead(0), 1, "a", 2, "b")
    queue.expire()
    assert samples()["rmq_events_total", of("Orders", event="forgotten")] == 2


def test_a_reason_that_somebody_made_up_is_escaped(broker, samples):
    broker.create("Orders", "FixedTime", 1)
    queue = broker.queue("Orders")
    queue.server.command("HINCRBY", queue.keys.stats(0), "dead:\x1b[2J\u202e\x9b", 1)
    assert samples()["rmq_deaths_total", of("Orders", reason=r"\x1b[2J\u202e\x9b")] == 1


def test_a_topic_that_goes_is_told_no_more(broker, samples):
    broker.create("Orders", "FixedTime", 4)
    assert ("rmq_due_messages", of("Orders")) in samples()
    broker.delete("Orders")
    assert samples() == {("rmq_up", ()): 1, ("rmq_redis_evicts", ()): 0}


def test_a_queue_that_cannot_be_read_hides_no_other_and_is_named_with_the_reason(
    broker, samples, caplog
):
    broker.create("Orders", "FixedTime", 4, groups=["", "audit"])
    broker.create("Mails", "FixedTime", 4)
    orders = broker.queue("Orders")
    version_2 = "2 1700000000 1 0 0 0 1700000000000 0"
    broker.server.client.hset(orders.keys.claims(1), "clerk:1:0", version_2)
    broker.server.client.set(broker.queue("Mails").keys.store(0), "not a sorted set")
    broker.server.client.hset(topics_key(broker.key_prefix), "Later", "{}")
    found = samples()
    assert found["rmq_up", ()] == 1
    assert ("rmq_due_messages", of("Orders", "audit")) in found
    assert ("rmq_due_messages", of("Orders")) not in found
    assert ("rmq_due_messages", of("Mails")) not in found
    assert "topic Orders, group default is left out" in caplog.text
    assert "another version of rmq-spark" in caplog.text
    assert "topic Mails, group default is left out" in caplog.text
    assert "The definition of topic Later in rmq_topics cannot be read" in caplog.text
    told = list(caplog.messages)
    samples()
    assert caplog.messages == told


def test_a_redis_that_does_not_answer_is_down_and_comes_up_again(own_redis):
    broker = connect(own_redis.url, patience_s=0.1)
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    own_redis.kill()
    assert b"rmq_up 0.0" in generate_latest(registry)
    own_redis.start()
    assert b"rmq_up 1.0" in generate_latest(registry)


def test_the_dashboard_draws_only_what_there_is(broker):
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    QueryMetrics(registry)
    broker.create("Orders", "FixedTime", 1)
    registry.register(ListenerCollector(broker.listen("Orders", "billing", print)))
    registry.register(FunctionCollector("billing", each_message(print)))
    there = {family.name for family in registry.collect()}
    panels = json.loads(dashboard_json())["panels"]
    drawn = {
        re.sub(r"_(total|bucket)$", "", name)
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"rmq_[a-z_]+", target["expr"])
    }
    assert len(panels) == 15
    as_of_the_queues = {"rmq_query_messages", "rmq_query_events"}
    assert there - drawn == {*as_of_the_queues, "rmq_listener_workers_at_work"}
    assert drawn - there == set()


def test_the_dashboard_shows_one_exporter_if_several_are_scraped(broker):
    """Failed before: the figures of topics that have one name in two databases were added."""
    broker.create("Orders", "FixedTime", 1)
    of_exporter = {family.name for family in QueueCollector(lambda: broker).collect()}
    asked = [
        figure
        for panel in json.loads(dashboard_json())["panels"]
        for target in panel["targets"]
        for figure in re.findall(r"rmq_[a-z_]+(?:{[^}]*})?", target["expr"])
    ]
    of_one = [one for one in asked if re.sub(r"(_total)?({.*)?$", "", one) in of_exporter]
    assert len(of_one) > 10
    assert [one for one in of_one if 'instance=~"$instance"' not in one] == []


def test_a_policy_that_was_changed_under_a_running_program_is_told(own_redis, monkeypatch, caplog):
    monkeypatch.setattr(server_module, "POLICY_EVERY_S", 0)
    registry = CollectorRegistry()
    with connect(own_redis.url) as broker:
        registry.register(QueueCollector(lambda: broker))
        broker.create("T", "FixedTime", 1)
        assert b"rmq_redis_evicts 0.0" in generate_latest(registry)
        broker.server.client.config_set("maxmemory-policy", "allkeys-lru")
        for content in ("a", "b"):
            broker.queue("T").send([content], fixed_time=FAR_MS)
        assert b"rmq_redis_evicts 1.0" in generate_latest(registry)
        findings = {finding.what: finding for finding in check_server(broker)}
        assert findings["Redis policy"].state == FAIL
        assert "allkeys-lru" in findings["Redis policy"].seen
        broker.server.client.config_set("maxmemory-policy", "noeviction")
        broker.queue("T").send(["c"], fixed_time=FAR_MS)
        assert b"rmq_redis_evicts 0.0" in generate_latest(registry)
    assert caplog.text.count("now has maxmemory-policy allkeys-lru") == 1


def test_a_policy_that_no_program_connects_to_is_told(own_redis):
    """Failed before: only rmq_up was 0, so the alert of a Redis that is down came in its place."""
    registry = CollectorRegistry()
    with connect(own_redis.url) as broker:
        broker.server.client.config_set("maxmemory-policy", "allkeys-lru")
        registry.register(QueueCollector(lambda: connect(own_redis.url)))
        found = generate_latest(registry)
        assert (b"rmq_up 0.0" in found, b"rmq_redis_evicts 1.0" in found) == (True, True)
        broker.server.client.config_set("maxmemory-policy", "noeviction")
    assert b"rmq_redis_evicts 0.0" in generate_latest(registry)


def test_a_schedule_that_nobody_runs_is_late(broker, caplog):
    broker.create("T", "FixedTime", 1)
    broker.schedule("often", "T", "m", every="1s")
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    labels = {"schedule": "often", "topic": "T"}
    wait_until(
        lambda: registry.get_sample_value("rmq_schedule_late_seconds", labels) > 0,
        "a schedule that is late",
    )
    # Failed before: then no schedule was late.
    broker.server.command("HSET", schedules_key(broker.key_prefix), "another", "not JSON")
    for _ in range(2):
        assert registry.get_sample_value("rmq_schedule_late_seconds", labels) > 0
    assert caplog.text.count("The schedule another in rmq_schedules cannot be read") == 1
