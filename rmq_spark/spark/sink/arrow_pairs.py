"""From columns to what is sent: large batches, and by slot one packed argument of a script."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.protocol.messagepack import PackedPairs, head_of

# The more messages of a slot go together, the less Redis jumps between the sorted sets of slots: at
# 64 slots one call of 150 messages costs it twice as much a message as one of 2000.
ROWS_A_BATCH = 131_072
BYTES_A_BATCH = 32 * 1024 * 1024
_BYTES = pa.large_binary()


def larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of up to so many rows and bytes (one of Spark's may have more)."""
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


def pairs_by_slot(scores: Any, contents: pa.Array, slots: Any) -> dict[int, PackedPairs]:
    """By slot, score, content, score, content, ... in the order of the rows.

    scores: int64. contents: Arrow's texts or bytes. slots: whole numbers below 65536.
    """
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    ordered = contents.cast(_BYTES).take(pa.array(order))  # text views cannot be taken
    packed = _packed(pa.array(scores[order]), ordered)
    _, starts, text = packed.buffers()
    starts = np.frombuffer(starts, np.int64)
    return {
        slot: PackedPairs(memoryview(text), starts[start : end + 1])
        for slot, start, end in runs(slots[order])
    }


def rows_by_slot(slots: Any) -> list[tuple[int, Any]]:
    """Each slot, and the places of its rows."""
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    return [(slot, order[start:end]) for slot, start, end in runs(slots[order])]


def runs(ordered: Any) -> list[tuple[int, int, int]]:
    """Of sorted slots: each slot, where it begins and where it ends."""
    starts = np.flatnonzero(np.diff(ordered.astype(np.int64), prepend=-1)).tolist()
    ends = [*starts[1:], len(ordered)]
    return [(int(ordered[start]), start, end) for start, end in zip(starts, ends, strict=True)]


def _packed(scores: pa.Array, contents: pa.Array) -> pa.Array:
    """Of each row its score and its content, each behind its head."""
    texts = scores.cast(pa.string()).cast(_BYTES)
    nothing = pa.scalar(b"", _BYTES)
    return pc.binary_join_element_wise(_heads(texts), texts, _heads(contents), contents, nothing)


def _heads(texts: pa.Array) -> pa.Array:
    lengths, which = np.unique(pc.binary_length(texts).to_numpy(), return_inverse=True)
    return pa.array([head_of(length) for length in lengths.tolist()], _BYTES).take(pa.array(which))
