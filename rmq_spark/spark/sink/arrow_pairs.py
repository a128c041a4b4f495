"""Packing of Arrow columns: the scores and contents of a slot become one script argument."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.protocol.messagepack import PackedPairs, head_of

# A large batch puts many messages of a slot into one call, so Redis switches less often between
# the sorted sets of slots. With 64 slots, a message costs twice as much in a call of 150 messages
# as in a call of 2000.
ROWS_A_BATCH = 131_072
BYTES_A_BATCH = 32 * 1024 * 1024
_BYTES = pa.large_binary()


def coalesce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches into larger ones, in order.

    A joined batch has at most ROWS_A_BATCH rows and BYTES_A_BATCH bytes. A batch that Spark made
    larger stays whole. Empty batches are dropped.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (
            rows + batch.num_rows > ROWS_A_BATCH or size + batch.nbytes > BYTES_A_BATCH
        ):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        if batch.num_rows:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def packed_by_slot(
    scores: Any, contents: pa.Array, slots: Any, bodies: pa.Array | None = None
) -> tuple[dict[int, PackedPairs], dict[int, PackedPairs]]:
    """Group rows by slot and pack each group for a script, in the order of the rows.

    scores: an int64 array. contents: an Arrow array of STRING or BINARY. slots: an array of whole
    numbers below 65536. Returns score, content, score, content, ... by slot; and content, body,
    content, body, ... by slot, which is empty without bodies.
    """
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    ordered = _ordered(contents, order)
    scores, of_slots = scores[order], runs(slots[order])
    text, starts = _packed(pa.array(scores).cast(pa.string()).cast(_BYTES), ordered)
    pairs = {
        slot: PackedPairs(text, starts[start : end + 1], int(scores[start:end].min()))
        for slot, start, end in of_slots
    }
    if bodies is None:
        return pairs, {}
    text, starts = _packed(ordered, _ordered(bodies, order))
    return pairs, {
        slot: PackedPairs(text, starts[start : end + 1], 0) for slot, start, end in of_slots
    }


def _ordered(texts: pa.Array, order: Any) -> pa.Array:
    return texts.cast(_BYTES).take(pa.array(order))  # Arrow has no take for string views


def rows_by_slot(slots: Any) -> list[tuple[int, Any]]:
    """Group row positions by slot. Returns pairs of a slot and the array of its positions.

    slots: an array of whole numbers below 65536.
    """
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    return [(slot, order[start:end]) for slot, start, end in runs(slots[order])]


def runs(ordered: Any) -> list[tuple[int, int, int]]:
    """Find the runs of equal values in sorted slots. Returns (slot, start, end), end exclusive."""
    starts = np.flatnonzero(np.diff(ordered.astype(np.int64), prepend=-1)).tolist()
    ends = [*starts[1:], len(ordered)]
    return [(int(ordered[start]), start, end) for start, end in zip(starts, ends, strict=True)]


def _packed(firsts: pa.Array, seconds: pa.Array) -> tuple[memoryview, Any]:
    """Encode two texts of each row in MessagePack, each after its header.

    Returns the text of all rows, and where each row begins in it.
    """
    nothing = pa.scalar(b"", _BYTES)
    joined = pc.binary_join_element_wise(
        _headers(firsts), firsts, _headers(seconds), seconds, nothing
    )
    _, starts, text = joined.buffers()
    return memoryview(text), np.frombuffer(starts, np.int64)


def _headers(texts: pa.Array) -> pa.Array:
    """Build the MessagePack header of each text. Texts of the same length share one."""
    lengths, which = np.unique(pc.binary_length(texts).to_numpy(), return_inverse=True)
    return pa.array([head_of(length) for length in lengths.tolist()], _BYTES).take(pa.array(which))
