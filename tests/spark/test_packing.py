"""Rows on their way to Redis: joined into large batches, grouped by slot, packed."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.queue.packed import PackedPairs, packed_call
from rmq_spark.spark import packing

ROWS = st.lists(
    st.tuples(st.integers(17, 2**53), st.binary(max_size=300), st.integers(0, 65535)), min_size=1
)


def packed(rows):
    scores, contents, slots = zip(*rows, strict=True)
    return packing.pairs_by_slot(np.array(scores), pa.array(contents, pa.binary()), np.array(slots))


@given(ROWS)
def test_every_slot_gets_its_rows_in_their_order(rows):
    by_slot = packed(rows)
    assert set(by_slot) == {slot for _, _, slot in rows}
    for slot, pairs in by_slot.items():
        wanted = [
            value
            for score, content, of in rows
            if of == slot
            for value in (str(score).encode(), content)
        ]
        assert list(pairs) == wanted
        assert len(pairs) == len(wanted)


@given(ROWS, st.data())
def test_a_slice_holds_its_rows(rows, data):
    pairs = packed([(score, content, 0) for score, content, _ in rows])[0]
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert list(pairs[2 * start : 2 * end]) == list(pairs)[2 * start : 2 * end]
    assert len(pairs[2 * start :]) == len(pairs) - 2 * start


def test_a_packed_call_is_what_the_client_would_send(server):
    pairs = packed([(17, b"\r\n$5\r\n", 3), (2**53, "größer".encode(), 3)])[3]
    connection = server.client.connection_pool.get_connection()
    try:
        plain = connection.pack_command("EVALSHA", "sha", 2, "key-ä", b"k", 5, *pairs)
    finally:
        server.client.connection_pool.release(connection)
    words = ["EVALSHA", "sha", 2, "key-ä", b"k", 5]
    assert b"".join(packed_call(words, pairs)) == b"".join(plain)


@pytest.mark.parametrize("slots", [1, 65536])
def test_what_was_packed_arrives(broker, slots):
    broker.create("T", "Priority", slots)
    queue = broker.queue("T")
    contents = [b"a", b"", b"\r\n", bytes(range(256)), "größer".encode()]
    rows = [(17 + at, content, at % slots) for at, content in enumerate(contents)]
    queue.send_pairs(packed(rows))
    found = {
        content: int(score)
        for slot in range(min(slots, len(rows)))
        for content, score in queue.server.client.zrange(
            queue.keys.store(slot), 0, -1, withscores=True
        )
    }
    assert found == {content: score for score, content, _ in rows}


def test_a_list_may_stand_for_packed_pairs(broker):
    broker.create("T", "Priority", 1)
    assert broker.queue("T").send_pairs({0: [17, b"a", 18, b"b"]}).new == 2


def batches(*counts):
    return (pa.RecordBatch.from_pydict({"c": ["x" * 10] * count}) for count in counts)


def test_small_batches_are_joined_up_to_a_number_of_rows(monkeypatch):
    monkeypatch.setattr(packing, "ROWS_A_BATCH", 10)
    assert [b.num_rows for b in packing.larger(batches(4, 0, 6, 1, 9, 1))] == [10, 10, 1]
    assert [b.num_rows for b in packing.larger(batches(25, 2))] == [25, 2]
    assert list(packing.larger(batches(0, 0))) == []


def test_small_batches_are_joined_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr(packing, "BYTES_A_BATCH", 100)
    assert [b.num_rows for b in packing.larger(batches(5, 5, 5))] == [5, 5, 5]
    monkeypatch.setattr(packing, "BYTES_A_BATCH", 1000)
    assert [b.num_rows for b in packing.larger(batches(5, 5, 5))] == [15]


def test_pairs_can_be_read_one_by_one():
    pairs = packed([(17, b"a", 0)])[0]
    assert isinstance(pairs, PackedPairs)
    assert (pairs[0], pairs[1], pairs[-1]) == (b"17", b"a", b"a")
