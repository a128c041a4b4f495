"""Pairs on their way into a script's one argument: no server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.protocol import packing as packing
from rmq_spark.protocol.packing import PackedPairs, calls_of, packed

CONTENTS = st.lists(st.binary(max_size=40), max_size=60)


def pairs_of(contents):
    return [value for at, content in enumerate(contents) for value in (17 + at, content)]


def columns(contents):
    """The same pairs, packed together."""
    rows = [packed([17 + at, content]) for at, content in enumerate(contents)]
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    return PackedPairs(memoryview(b"".join(rows)), starts, 0, 0)


def bodies_of(pairs, form):
    """As many bodies, some of them larger than their content."""
    return form([content * 2 for content in pairs[1::2]])


@pytest.mark.parametrize("has_bodies", [False, True])
@pytest.mark.parametrize("form", [pairs_of, columns])
@given(contents=CONTENTS, messages=st.integers(1, 20), size=st.integers(1, 300))
def test_no_part_has_more_messages_or_bytes_than_a_call_takes(
    form, has_bodies, contents, messages, size
):
    bodies = bodies_of(pairs_of(contents), form) if has_bodies else ()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packing, "BYTES_A_CALL", size)
        parts = calls_of(form(contents), messages, bodies)
    assert b"".join(packed(pairs) for pairs, _ in parts) == packed(pairs_of(contents))
    assert b"".join(packed(of_part) for _, of_part in parts if len(of_part)) == packed(bodies)
    for pairs, of_part in parts:
        assert 2 <= len(pairs) <= 2 * messages
        assert len(of_part) == (len(pairs) if has_bodies else 0)
        one_message = len(pairs) == 2
        scores_and_heads = 6 * len(pairs)
        for each in (pairs, of_part):
            assert one_message or len(packed(each)) <= size + scores_and_heads


def test_parts_are_as_large_as_they_may_be():
    parts = calls_of(pairs_of([b"x"] * 10), 4)
    assert [len(pairs) // 2 for pairs, _ in parts] == [4, 4, 2]


def test_texts_and_numbers_are_packed_as_utf_8():
    assert packed([17, "größer"]) == b"\xa217" + b"\xa8" + "größer".encode()
