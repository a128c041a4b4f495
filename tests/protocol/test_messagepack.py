"""Pairs on their way into a script's one argument: no server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.protocol import messagepack as packing
from rmq_spark.protocol.messagepack import PackedPairs, calls_of, packed

CONTENTS = st.lists(st.binary(max_size=40), max_size=60)


def pairs_of(contents):
    return [value for at, content in enumerate(contents) for value in (17 + at, content)]


def columns(contents):
    """The same pairs, packed together."""
    rows = [packed([17 + at, content]) for at, content in enumerate(contents)]
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    return PackedPairs(memoryview(b"".join(rows)), starts, 0)


@pytest.mark.parametrize("form", [pairs_of, columns])
@given(contents=CONTENTS, messages=st.integers(1, 20), size=st.integers(1, 300))
def test_no_part_has_more_messages_or_bytes_than_a_call_takes(form, contents, messages, size):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packing, "BYTES_A_CALL", size)
        parts = calls_of(form(contents), messages)
    assert b"".join(packed(part) for part in parts) == packed(pairs_of(contents))
    for part in parts:
        assert 2 <= len(part) <= 2 * messages
        one_message = len(part) == 2
        scores_and_heads = 6 * len(part)
        assert one_message or len(packed(part)) <= size + scores_and_heads


def test_parts_are_as_large_as_they_may_be():
    parts = calls_of(pairs_of([b"x"] * 10), 4)
    assert [len(part) // 2 for part in parts] == [4, 4, 2]


def test_texts_and_numbers_are_packed_as_utf_8():
    assert packed([17, "größer"]) == b"\xa217" + b"\xa8" + "größer".encode()
