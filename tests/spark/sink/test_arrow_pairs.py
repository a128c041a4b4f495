"""Rows on their way to Redis: joined into large batches, grouped by slot, packed."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.protocol import sending
from rmq_spark.protocol.packing import lowest_of, packed
from rmq_spark.spark.sink import columns as packing

ROWS = st.lists(
    st.tuples(st.integers(17, 2**53), st.binary(max_size=300), st.integers(0, 65535)), min_size=1
)


def values_of(rows):
    return [value for score, content, _ in rows for value in (str(score).encode(), content)]


def by_columns(rows):
    scores, contents, slots = zip(*rows, strict=True)
    return packing.packed_by_slot(
        np.array(scores), pa.array(contents, pa.binary()), np.array(slots)
    )[0]


@given(ROWS)
def test_bodies_are_packed_in_the_order_of_their_messages(rows):
    scores, contents, slots = zip(*rows, strict=True)
    bodies = [content * 2 for content in contents]
    by_slot, bodies_by_slot = packing.packed_by_slot(
        np.array(scores),
        pa.array(contents, pa.binary()),
        np.array(slots),
        pa.array(bodies, pa.binary()),
    )
    assert by_slot.keys() == bodies_by_slot.keys()
    for slot, pairs in bodies_by_slot.items():
        wanted = [text for _, content, at in rows if at == slot for text in (content, content * 2)]
        assert bytes(pairs) == packed(wanted)


@given(ROWS)
def test_every_slot_gets_its_rows_in_their_order(rows):
    by_slot = by_columns(rows)
    assert set(by_slot) == {slot for _, _, slot in rows}
    for slot, pairs in by_slot.items():
        wanted = values_of(row for row in rows if row[2] == slot)
        assert bytes(pairs) == packed(wanted)  # one by one, as plain Python packs them
        assert len(pairs) == len(wanted)


@given(ROWS, st.data())
def test_a_slice_holds_its_rows(rows, data):
    rows = [(score, content, 0) for score, content, _ in rows]
    pairs = by_columns(rows)[0]
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    part = pairs[2 * start : 2 * end]
    assert bytes(part) == packed(values_of(rows[start:end]))
    assert len(part) == 2 * (end - start)


LENGTHS = (0, 1, 31, 32, 255, 256, 65535, 65536, 200_000)


def test_a_script_unpacks_what_was_packed_whatever_its_length(server):
    contents = [bytes([at]) * length for at, length in enumerate(LENGTHS)]
    rows = [(17 + at, content, 3) for at, content in enumerate(contents)]
    by_rows = packed(values_of(rows))
    assert bytes(by_columns(rows)[3]) == by_rows
    assert server.client.eval("return {cmsgpack.unpack(ARGV[1])}", 0, by_rows) == values_of(rows)


@pytest.mark.parametrize("slots", [1, 65536])
def test_what_was_packed_arrives(broker, slots):
    broker.create("T", "Priority", slots)
    queue = broker.queue("T")
    contents = [b"a", b"", b"\r\n", bytes(range(256)), "größer".encode()]
    rows = [(17 + at, content, at % slots) for at, content in enumerate(contents)]
    queue.ask(sending.send, by_columns(rows))
    found = {
        content: int(score)
        for slot in range(min(slots, len(rows)))
        for content, score in queue.server.client.zrange(
            queue.keys.store(slot), 0, -1, withscores=True
        )
    }
    assert found == {content: score for score, content, _ in rows}


def test_each_slot_and_its_parts_know_a_score_that_none_is_below():
    by_slot = by_columns([(30, b"a", 1), (20, b"b", 1), (25, b"c", 0)])
    assert {slot: lowest_of(pairs) for slot, pairs in by_slot.items()} == {0: 25, 1: 20}
    assert lowest_of(by_slot[1][0:2]) == 20
    assert lowest_of([30, b"a", 20, b"b"]) == 20


def test_a_list_may_stand_for_packed_pairs(broker):
    broker.create("T", "Priority", 1)
    assert broker.queue("T").ask(sending.send, {0: [17, b"a", 18, b"b"]}).new == 2


def batches(*counts):
    return (pa.RecordBatch.from_pydict({"c": ["x" * 10] * count}) for count in counts)


def test_small_batches_are_joined_up_to_a_number_of_rows(monkeypatch):
    monkeypatch.setattr(packing, "ROWS_A_BATCH", 10)
    assert [b.num_rows for b in packing.coalesce(batches(4, 0, 6, 1, 9, 1))] == [10, 10, 1]
    assert [b.num_rows for b in packing.coalesce(batches(25, 2))] == [25, 2]
    assert list(packing.coalesce(batches(0, 0))) == []


def test_small_batches_are_joined_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr(packing, "BYTES_A_BATCH", 100)
    assert [b.num_rows for b in packing.coalesce(batches(5, 5, 5))] == [5, 5, 5]
    monkeypatch.setattr(packing, "BYTES_A_BATCH", 1000)
    assert [b.num_rows for b in packing.coalesce(batches(5, 5, 5))] == [15]
