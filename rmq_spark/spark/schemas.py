"""The columns of the source and of queues as tables."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.parsing import LAST_SHOWN_MS

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
SOURCE_SCHEMA = StructType(
    [
        StructField("content", StringType()),
        StructField("key", StringType()),
        StructField("topic", StringType()),
        StructField("slot", IntegerType()),
        StructField("dueTime", TimestampType()),
        StructField("priority", LongType()),
        StructField("deliveryCount", IntegerType()),
        StructField("retriesLeft", IntegerType()),
        StructField("claimId", StringType()),
        StructField("claimedAt", TimestampType()),
    ]
)
TABLE_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("queue", StringType()),
        StructField("slot", IntegerType()),
        StructField("content", StringType()),
        StructField("key", StringType()),
        StructField("dueTime", TimestampType()),
        StructField("priority", LongType()),
        StructField("retriesLeft", IntegerType()),
        StructField("preparedAt", TimestampType()),
        StructField("diedAt", TimestampType()),
        StructField("consumer", StringType()),
        StructField("reason", StringType()),
    ]
)
# The columns that a query gets only if it asks for them.
_ON_REQUEST = [StructField("headers", HEADERS), StructField("expiresAt", TimestampType())]
WHOLE_SOURCE_SCHEMA = StructType([*SOURCE_SCHEMA.fields, *_ON_REQUEST])
WHOLE_TABLE_SCHEMA = StructType([*TABLE_SCHEMA.fields, *_ON_REQUEST])


def times(times_ms: Sequence[int | None], of_type: pa.DataType) -> pa.Array:
    """Convert times to a column, none later than Python can show: Spark would fail all rows."""
    shown = pc.min_element_wise(pa.array(times_ms, pa.int64()), LAST_SHOWN_MS, skip_nulls=False)
    return shown.cast(pa.timestamp("ms", "UTC")).cast(of_type)


def check_schema(schema: StructType, columns: StructType, whose: str) -> StructType:
    """Check the schema that a user wants, and return it.

    columns: those that exist; key and content may also be BINARY. whose: the reader that offers
    them, for the error.
    """
    offered: dict[str, tuple[DataType, ...]] = {
        field.name.lower(): (field.dataType,) for field in columns.fields
    }
    for name in ("key", "content"):
        if name in offered:
            offered[name] += (BinaryType(),)
    for field in schema.fields:
        types = offered.get(field.name.lower())
        if types is not None and field.dataType not in types:
            found = " or ".join(one.simpleString() for one in types)
            raise InvalidOption(
                f"The schema asks for {field.name} as {field.dataType.simpleString()}. Accepted: "
                f"{found}. Cast it after the read."
            )
        if types is None:
            accepted = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in columns.fields)
            raise InvalidOption(
                f"The schema asks for {field.name} {field.dataType.simpleString()}, which {whose} "
                f"does not have. Accepted: any of {accepted}; key and content may be binary."
            )
    names = [field.name.lower() for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(
                f"The schema asks for {name} more than once. Accepted: once. Copy the column after "
                "the read."
            )
    if not schema.fields:
        raise InvalidOption("The schema has no columns. Accepted: at least one, such as content.")
    return schema


def first_not_utf8(texts: Iterable[bytes | None]) -> tuple[int, UnicodeDecodeError] | None:
    """Return the position of the first text that is not valid UTF-8, and its error."""
    for at, text in enumerate(texts):
        try:
            (text or b"").decode()
        except UnicodeDecodeError as error:
            return at, error
    return None
