"""The rows that a function gets: those of Spark, whatever the columns."""

import inspect
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.conversion import ArrowTableToRowsConversion

from rmq_spark.spark.compatibility import arrow_schema
from rmq_spark.spark.listener.child import rows_of

EARLIEST, LATEST = datetime(1900, 1, 1), datetime(9999, 12, 30)
MOMENTS = st.datetimes(EARLIEST, LATEST, timezones=st.just(UTC))
FLAT = {
    types.BinaryType(): st.binary(max_size=5),
    types.BooleanType(): st.booleans(),
    types.ByteType(): st.integers(-128, 127),
    types.DateType(): st.dates(),
    types.DecimalType(10, 2): st.decimals(-(10**6), 10**6, places=2),
    types.DoubleType(): st.floats(allow_nan=False),
    types.FloatType(): st.floats(width=32, allow_nan=False),
    types.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    types.LongType(): st.integers(-(2**63), 2**63 - 1),
    types.NullType(): st.none(),
    types.ShortType(): st.integers(-(2**15), 2**15 - 1),
    types.StringType(): st.text(max_size=5),
    types.TimestampNTZType(): st.datetimes(EARLIEST, LATEST),
    types.TimestampType(): MOMENTS,
}


def nested(children):
    """Pairs of a type and its values, with others inside."""

    def in_a_list(pair):
        return types.ArrayType(pair[0]), st.lists(pair[1], max_size=3)

    def in_a_struct(pairs):
        fields = [types.StructField(f"f{at}", one[0]) for at, one in enumerate(pairs)]
        values = {f"f{at}": one[1] for at, one in enumerate(pairs)}
        return types.StructType(fields), st.fixed_dictionaries(values)

    def in_a_map(pair):
        values = st.dictionaries(st.text(max_size=3), pair[1], max_size=3)
        return types.MapType(types.StringType(), pair[0]), values.map(lambda one: [*one.items()])

    return st.one_of(
        children.map(in_a_list),
        st.lists(children, min_size=1, max_size=3).map(in_a_struct),
        children.map(in_a_map),
    )


# Spark 4.0 gives a bytearray, which no set or dict can hold as a key; a function always gets bytes.
GIVES_BYTES = "binary_as_bytes" in inspect.signature(ArrowTableToRowsConversion.convert).parameters
if not GIVES_BYTES:
    del FLAT[types.BinaryType()]

PAIRS = st.recursive(st.sampled_from(list(FLAT.items())), nested, max_leaves=4)


@contextmanager
def in_zone(name):
    """As on a machine in that time zone."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", name)
            time.tzset()
            yield
    finally:
        time.tzset()


def batch_and_schema(columns):
    """A batch as Spark sends it. columns: types and values."""
    fields = [types.StructField(f"c{at}", of_type) for at, (of_type, _) in enumerate(columns)]
    schema = types.StructType(fields)
    of_arrow = [field.type for field in arrow_schema(schema)]
    arrays = [pa.array(values, of) for of, (_, values) in zip(of_arrow, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema.fieldNames()), schema


@given(data=st.data(), pairs=st.lists(PAIRS, min_size=1, max_size=4), rows=st.integers(1, 4))
def test_rows_are_those_of_spark(data, pairs, rows):
    columns = [
        (of, data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows)))
        for of, values in pairs
    ]
    batch, schema = batch_and_schema(columns)
    ours = rows_of(batch, schema)
    sparks = ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema)
    assert ours == sparks
    assert repr(ours) == repr(sparks)
    assert [row.asDict() for row in ours] == [row.asDict() for row in sparks]
    assert [type(value) for row in ours for value in row] == [
        type(value) for row in sparks for value in row
    ]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata"])
@given(moments=st.lists(MOMENTS, min_size=1))
def test_times_are_those_of_the_functions_zone(zone, moments):
    batch, schema = batch_and_schema([(types.TimestampType(), moments)])
    with in_zone(zone):
        sparks = ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema)
        assert rows_of(batch, schema) == sparks


def test_of_two_equal_hours_it_is_told_which_as_collect_does():
    """Failed before: 02:30 before and after the clocks were set back was one moment."""
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    second = first + timedelta(hours=1)
    batch, schema = batch_and_schema([(types.TimestampType(), [first, second])])
    with in_zone("Europe/Berlin"):
        times = [row.c0 for row in rows_of(batch, schema)]
        assert [time.replace(fold=0) for time in times] == [datetime(2026, 10, 25, 2, 30)] * 2
        assert [time.fold for time in times] == [0, 1]
        assert [time.astimezone(UTC) for time in times] == [first, second]
