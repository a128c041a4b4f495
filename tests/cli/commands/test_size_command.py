"""What a deployment takes, worked out from measured costs."""

import re

import pytest

from rmq_spark.client import connect
from rmq_spark.ownership.balance import balance
from rmq_spark.ownership.paths import write_assignment
from rmq_spark.topics.definition import MOST_SLOTS
from rmq_spark.views.deployment_size import LOAD, NODE_BYTES, allocated_bytes, deployment_size
from rmq_spark.views.measured_costs import ENTRY_BYTES

from ... import ROOT

JUTE_BUFFER_BYTES = 0xFFFFF  # the most that a ZooKeeper server takes or stores, by default


def sized(rmq, *arguments):
    done = rmq("size", *arguments, "--json")
    assert done.code == 0, done.err
    return done.json


def test_a_small_load_takes_one_node_and_one_query(rmq):
    found = sized(rmq, "--messages", "1000", "--rate", "10")
    assert (found["redisMasters"], found["slotAmount"], found["queries"]) == (1, 64, 1)
    assert (found["zooKeeperPingsASecond"], found["zooKeeperWritesAChange"]) == (0, 0)


def test_much_data_takes_nodes_for_its_memory(rmq):
    found = sized(rmq, "--messages", "10000000000", "--rate", "1000000")
    assert found["redisMasters"] == found["redisMastersForData"] > found["redisMastersForRate"]
    assert found["dataBytes"] / found["redisMasters"] <= NODE_BYTES
    assert found["slotAmount"] >= 64 * found["redisMasters"]


def test_a_high_rate_takes_nodes_for_their_cores(rmq):
    found = sized(rmq, "--messages", "1000", "--rate", "10000000")
    assert found["redisMasters"] == found["redisMastersForRate"] > found["redisMastersForData"]


def test_large_contents_take_more_of_everything(rmq):
    load = ("--messages", "1000000000", "--rate", "1000000")
    small, large = sized(rmq, *load), sized(rmq, *load, "--bytes", "1024")
    assert small["messageBytes"] == 34
    for name in ("dataBytes", "redisMastersForData", "redisMastersForRate"):
        assert large[name] > 2 * small[name]


def test_the_table_shows_why(rmq):
    done = rmq("size", "--messages", "10000000000", "--rate", "1000000")
    assert re.search(r"Redis masters +\d+ +\d+ for the data, \d+ for the rate; the data", done.out)
    assert "Worked out, not measured" in done.err


@pytest.mark.parametrize("option", ["--messages", "--rate", "--bytes"])
def test_a_value_out_of_bounds_is_refused(rmq, option):
    given = {"--messages": "5", "--rate": "5"} | {option: "0"}
    done = rmq("size", *(word for pair in given.items() for word in pair))
    assert done.code == 2
    assert option in done.err


def test_no_server_is_asked(rmq):
    done = rmq("size", "--messages", "5", "--rate", "5", url="redis://127.0.0.1:1/0")
    assert done.code == 0


def test_nodes_are_half_busy():
    size = deployment_size(1, 1_000_000, 34)
    assert size.masters_for_rate == -(-(1.7 + 1.58) // LOAD)


@pytest.mark.parametrize(("content", "taken"), [(1, 8), (34, 40), (60, 64), (61, 80), (1021, 1280)])
def test_contents_take_what_the_allocator_gives(content, taken):
    assert allocated_bytes(content) == taken


@pytest.mark.parametrize("content", [34, 300, 1024])
def test_a_message_takes_as_much_memory_as_is_worked_out(own_redis, content):
    messages = 50_000
    with connect(own_redis.url) as broker:
        client = broker.server.client
        broker.create("T", "FixedTime", 64)
        queue = broker.queue("T")
        queue.send([b"first"], fixed_time=10**12)
        before = client.info("memory")["used_memory"]
        queue.send([b"%0*d" % (content, number) for number in range(messages)], fixed_time=10**12)
        taken = (client.info("memory")["used_memory"] - before) / messages
    assert taken == pytest.approx(ENTRY_BYTES + allocated_bytes(content), rel=0.15)


def test_an_assignment_of_all_slots_fits_into_a_node_of_zookeeper():
    """Otherwise a topic with as many slots as there can be could not be shared."""
    members = [f"member-{'x' * 100}-{number:010d}" for number in range(64)]
    shares = balance({}, members, MOST_SLOTS)
    assert sum(map(len, shares.values())) == MOST_SLOTS
    assert len(write_assignment(shares)) < JUTE_BUFFER_BYTES


def test_every_source_of_a_cost_is_there():
    text = (ROOT / "rmq_spark" / "views" / "measured_costs.py").read_text()
    text += (ROOT / "rmq_spark" / "views" / "deployment_size.py").read_text()
    named = set(re.findall(r"\b(\w+)\.md\b", text)) - {"scaling"}
    assert named >= {"backlog", "claims", "growth", "planning_scale"}
    assert [n for n in named if not (ROOT / "bench" / "results" / f"{n}.md").is_file()] == []
