"""The bodies of rows, without Spark and Redis: which rows have one."""

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.client import TopicDefinition, TopicType
from rmq_spark.errors import InvalidMessage
from rmq_spark.protocol.bodies import Body
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.columns import Rows
from rmq_spark.spark.sink.values import bodies_of_rows

NO_HEADERS = pa.nulls(2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
EMPTY_HEADERS = pa.array([[], []], NO_HEADERS.type)
SOME_HEADERS = pa.array([[{"key": "h", "value": b"v"}], None], NO_HEADERS.type)
NO_TIMES = pa.nulls(2, pa.int64())
SOME_TIMES = pa.array([9, None], pa.int64())
LIVES, HAS_HEADERS = Body(time_to_live_ms=9).pack(), Body(headers=[("h", b"v")]).pack()


def bodies(columns, keyed=False, **options):
    """The bodies of two rows with these columns, as they go to Redis; None if none do."""
    topic = TopicDefinition("T", TopicType.FIXED_TIME, keyed=keyed)
    given = parse_sink_options({"topic": "T", **options})
    found = bodies_of_rows(Rows(columns, 2), topic, given, None)
    return None if found is None else found.to_pylist()


@pytest.mark.parametrize(
    "columns",
    [
        {"headers": NO_HEADERS},
        {"headers": EMPTY_HEADERS},
        {"headers": NO_HEADERS, "timeToLive": NO_TIMES, "expiresAt": NO_TIMES},
        {"expiresAt": NO_TIMES},
    ],
)
def test_rows_that_have_nothing_have_no_body(columns):
    assert bodies(columns) is None
    # Later rows of the same task may have one, and all of a stage have bodies or none has.
    assert bodies(columns, deliveryGuarantee="exactlyOnce") == [b"", b""]


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"headers": SOME_HEADERS}, [HAS_HEADERS, b""]),
        ({"headers": NO_HEADERS, "timeToLive": SOME_TIMES}, [LIVES, b""]),
        ({"headers": EMPTY_HEADERS, "timeToLive": SOME_TIMES}, [LIVES, b""]),
    ],
)
def test_of_others_each_row_that_has_something_has_a_body(columns, expected, guarantee):
    assert bodies(columns, deliveryGuarantee=guarantee) == expected


def test_an_option_that_is_before_the_due_time_is_named():
    """Failed before: it said that expiresAt is None."""
    topic = TopicDefinition("T", TopicType.FIXED_TIME)
    given = parse_sink_options({"topic": "T", "expiresAt": "9"})
    with pytest.raises(InvalidMessage, match=r"expiresAt is 9 \(the option\)\. .* 1970"):
        bodies_of_rows(Rows({"content": pa.array(["a"])}, 1), topic, given, [10])


def test_an_option_gives_all_rows_a_body():
    assert bodies({"headers": NO_HEADERS}, timeToLive="9") == [LIVES, LIVES]


ENDS = Body(expires_at_ms=9).pack()


@pytest.mark.parametrize(
    ("columns", "option", "expected"),
    [
        ({"expiresAt": SOME_TIMES}, {"timeToLive": "9"}, [ENDS, LIVES]),  # failed before
        ({"timeToLive": SOME_TIMES}, {"expiresAt": "9"}, [LIVES, ENDS]),
    ],
)
def test_an_option_is_for_rows_that_have_neither_of_the_two_expiries(columns, option, expected):
    assert bodies(columns, **option) == expected


@pytest.mark.parametrize("columns", [{}, {"headers": NO_HEADERS}, {"headers": EMPTY_HEADERS}])
def test_in_a_keyed_topic_every_message_has_a_body(columns):
    assert bodies(columns, keyed=True) == [Body().pack()] * 2


def test_a_header_whose_key_is_no_utf8_is_named_with_its_row():
    """Failed before: with a UnicodeDecodeError that named neither."""
    keys = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"1", b"2"])], ["key", "value"])
    headers = pa.ListArray.from_arrays([0, 1, 2], pairs)
    with pytest.raises(InvalidMessage, match=r"Row 1 .* headers is .*b'\\xff'.* UTF-8.*h\.key"):
        bodies({"headers": headers})


def test_the_fields_of_headers_have_any_letter_case():
    """Failed before: with a KeyError."""
    of_type = pa.list_(pa.struct([("Key", pa.string()), ("VALUE", pa.binary())]))
    headers = pa.array([[{"Key": "h", "VALUE": b"v"}], None], of_type)
    assert bodies({"headers": headers}) == [HAS_HEADERS, b""]


@pytest.mark.parametrize("due", [1_800_000_000_000, 2**53])
def test_an_end_before_the_due_time_is_refused_whatever_that_is(due):
    """Failed before for times that Python cannot show: with a ValueError."""
    rows = Rows({"content": pa.array(["a", "b"]), "expiresAt": SOME_TIMES}, 2)
    topic = TopicDefinition("T", TopicType.FIXED_TIME)
    shown = "2027-01-15" if due < 2**53 else str(due)
    with pytest.raises(InvalidMessage, match=f"Row 0 .* not before the message is due.* {shown}"):
        bodies_of_rows(rows, topic, parse_sink_options({"topic": "T"}), np.array([due, due]))
