"""What a deployment takes: the memory of a message on every server, and what follows from it."""

import pytest

from rmq_spark.client import connect
from rmq_spark.inspect.checks import software_of
from rmq_spark.inspect.sizing import (
    ENTRY_BYTES,
    LOAD,
    MEASURED_SERVER,
    allocated_bytes,
    deployment_size,
    measure_message_bytes,
)


def test_nodes_are_half_busy():
    size = deployment_size(1, 1_000_000, 34)
    assert size.masters_for_rate == -(-(1.7 + 1.58) // LOAD)


@pytest.mark.parametrize(("content", "taken"), [(1, 8), (34, 40), (60, 64), (61, 80), (1021, 1280)])
def test_contents_take_what_the_allocator_gives(content, taken):
    assert allocated_bytes(content) == taken


@pytest.mark.parametrize("content", [1, 34, 300, 1024, 2**20])
def test_a_message_takes_as_much_memory_as_was_measured(own_redis, content):
    with connect(own_redis.url) as broker:
        measured = measure_message_bytes(broker.server, content)
        assert broker.server.client.dbsize() == 0, "the trial leaves something behind"
        assert measured == pytest.approx(memory_taken(broker, content), rel=0.15)


@pytest.mark.parametrize("content", [34, 300, 1024])
def test_the_model_fits_the_server_that_it_names(own_redis, content):
    with connect(own_redis.url) as broker:
        info = broker.server.client.info()
        if not (
            software_of(info).startswith(MEASURED_SERVER) and "jemalloc" in info["mem_allocator"]
        ):
            pytest.skip(f"{software_of(info)} is not {MEASURED_SERVER} with jemalloc.")
        taken = memory_taken(broker, content)
    assert taken == pytest.approx(ENTRY_BYTES + allocated_bytes(content), rel=0.15)


def memory_taken(broker, content):
    """The memory of a message of a length, in bytes, with as many as fit into 64 MiB."""
    client = broker.server.client
    messages = min(50_000, 2**26 // content)
    broker.create("T", "FixedTime", 64)
    queue = broker.queue("T")
    queue.send([b"first"], fixed_time=10**12)
    before = client.info("memory")["used_memory"]
    contents = [b"%0*d" % (max(5, content), number) for number in range(messages)]
    queue.send(contents, fixed_time=10**12)
    return (client.info("memory")["used_memory"] - before) / messages
