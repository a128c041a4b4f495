"""The bodies of rows, without Spark and Redis: which rows have one."""

import pyarrow as pa
import pytest

from rmq_spark.client import TopicDefinition, TopicType
from rmq_spark.protocol.bodies import Body
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.columns import Rows
from rmq_spark.spark.sink.row_bodies import bodies_of_rows

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


def test_an_option_gives_all_rows_a_body():
    assert bodies({"headers": NO_HEADERS}, timeToLive="9") == [LIVES, LIVES]


@pytest.mark.parametrize("columns", [{}, {"headers": NO_HEADERS}, {"headers": EMPTY_HEADERS}])
def test_in_a_keyed_topic_every_message_has_a_body(columns):
    assert bodies(columns, keyed=True) == [Body().pack()] * 2
