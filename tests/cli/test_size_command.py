"""What a deployment takes, worked out from measured costs and a trial on the server at hand."""

import re
import shlex
from urllib.parse import quote

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.inspect.checks import software_of
from rmq_spark.inspect.sizing import NODE_BYTES
from rmq_spark.ownership.member import balance
from rmq_spark.ownership.nodes import write_assignment
from rmq_spark.topics.definition import MOST_SLOTS

from .. import ROOT
from ..security.credentials import SECRET, permit

JUTE_BUFFER_BYTES = 0xFFFFF  # the most that a ZooKeeper server takes or stores, by default


def sized(rmq, *arguments, **places):
    done = rmq("size", *arguments, "--json", **places)
    assert done.code == 0, done.err
    return done.json


def test_a_small_load_takes_one_node_and_one_query(rmq):
    found = sized(rmq, "--messages", "1000", "--rate", "10")
    assert (found["redisMasters"], found["slotAmount"], found["queries"]) == (1, 64, 1)
    assert found["redisReplicas"] == 1
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
    assert small["contentBytes"] == 34
    for name in ("dataBytes", "redisMastersForData", "redisMastersForRate"):
        assert large[name] > 2 * small[name]


def test_the_table_shows_why(rmq):
    done = rmq("size", "--messages", "10000000000", "--rate", "1000000")
    assert re.search(r"Redis masters +\d+ +\d+ for the data, \d+ for the rate; the data", done.out)
    assert "Worked out for Redis 7.0 on two cores: all other figures" in done.err


@pytest.mark.parametrize("option", ["--messages", "--rate", "--bytes"])
def test_a_value_out_of_bounds_is_refused(rmq, option):
    given = {"--messages": "5", "--rate": "5"} | {option: "0"}
    done = rmq("size", *(word for pair in given.items() for word in pair))
    assert done.code == 2
    assert option in done.err


def test_without_a_server_everything_is_worked_out(rmq):
    done = rmq("size", "--messages", "5", "--rate", "5", url="redis://127.0.0.1:1/0")
    assert done.code == 0
    assert "147 bytes a message" in done.out
    assert "Nothing was measured on your Redis: Redis at redis://127.0.0.1:1/0 cannot" in done.err
    assert "Worked out for Redis 7.0 on two cores: all figures" in done.err


def test_a_server_that_refuses_the_trial_is_named_with_its_reason(rmq, own_redis):
    with connect(own_redis.url) as broker:
        broker.server.client.config_set("maxmemory", "100kb")
    done = rmq("size", "--messages", "5", "--rate", "5", url=own_redis.url)
    assert done.code == 0
    assert re.search("Nothing was measured on your Redis: .* has reached maxmemory", done.err)
    assert "Worked out for Redis 7.0 on two cores: all figures" in done.err


def test_the_memory_of_a_message_is_measured_where_redis_answers(rmq, server):
    load = ("--messages", "1000000", "--rate", "1000")
    found = sized(rmq, *load)
    assert software_of(server.client.info()) in found["measuredOn"]
    assert found["dataBytes"] == pytest.approx(1_000_000 * found["messageBytes"], rel=0.01)
    assert "Measured on" in rmq("size", *load).err


def test_the_documented_user_measures_once_it_may_see_the_memory(rmq, own_redis):
    """Failed before: the trial was a transaction, on a key without the prefix."""
    permit(own_redis.url, "rmq", prefix=rmq.prefix)
    address = own_redis.url.replace("://", f"://rmq:{quote(SECRET, safe='')}@")
    load = ("size", "--messages", "1000", "--rate", "10")
    done = rmq(*load, url=address)
    assert done.code == 0
    assert "Nothing was measured on your Redis: this user may not run MEMORY USAGE. " in done.err
    remedy = done.err.split("To permit it: ")[1].splitlines()[0]
    words = shlex.split(remedy, comments=True)[6:]  # behind the address, and the administrator
    with redis.Redis.from_url(own_redis.url) as admin:
        assert admin.execute_command(*words)
        assert "Measured on" in rmq(*load, url=address).err
        assert admin.keys("*") == []


@pytest.mark.parametrize("user", ["rmq-reader", "rmq-sender"])
def test_a_user_who_may_not_write_is_not_given_writes(rmq, own_redis, user):
    """Failed before: +zadd was named for the reader, and a sender left the trial behind."""
    permit(own_redis.url, user, prefix=rmq.prefix)
    address = own_redis.url.replace("://", f"://{user}:{quote(SECRET, safe='')}@")
    done = rmq("size", "--messages", "1000", "--rate", "10", url=address)
    assert done.code == 0
    assert "may not run UNLINK. The trial writes, which a reader must not." in done.err
    assert "Measure as the user rmq of docs/security.md with +memory|usage." in done.err
    assert "SETUSER" not in done.err
    with redis.Redis.from_url(own_redis.url) as admin:
        assert admin.keys("*") == []


def test_an_assignment_of_all_slots_fits_into_a_node_of_zookeeper():
    """Otherwise a topic with as many slots as there can be could not be shared."""
    members = [f"member-{'x' * 100}-{number:010d}" for number in range(64)]
    shares = balance({}, members, MOST_SLOTS)
    assert sum(map(len, shares.values())) == MOST_SLOTS
    assert len(write_assignment(shares)) < JUTE_BUFFER_BYTES


def test_every_source_of_a_cost_is_there():
    text = (ROOT / "rmq_spark" / "inspect" / "sizing.py").read_text()
    named = set(re.findall(r"\b(\w+)\.md\b", text)) - {"scaling"}
    assert named >= {"backlog", "claims", "growth", "planning_scale"}
    assert [n for n in named if not (ROOT / "bench" / "results" / f"{n}.md").is_file()] == []
