"""The columns of source and sink."""

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_spark.queue.errors import InvalidOption

SOURCE_SCHEMA = StructType(
    [
        StructField("content", StringType()),
        StructField("topic", StringType()),
        StructField("slot", IntegerType()),
        StructField("dueTime", TimestampType()),
        StructField("priority", LongType()),
        StructField("deliveryCount", IntegerType()),
        StructField("retriesLeft", IntegerType()),
        StructField("claimId", StringType()),
    ]
)


def check_source_schema(schema: StructType) -> StructType:
    """The schema itself. Raises InvalidOption unless its columns are ones the source has."""
    offered: dict[str, tuple[DataType, ...]] = {
        field.name.lower(): (field.dataType,) for field in SOURCE_SCHEMA.fields
    }
    offered["content"] += (BinaryType(),)
    for field in schema.fields:
        types = offered.get(field.name.lower())
        if types is None or field.dataType not in types:
            columns = ", ".join(
                f"{f.name} {f.dataType.simpleString()}" for f in SOURCE_SCHEMA.fields
            )
            raise InvalidOption(
                f"The schema asks for {field.name} {field.dataType.simpleString()}, which the rmq "
                f"source has not. Accepted: any of {columns}; content may be binary."
            )
    if not schema.fields:
        raise InvalidOption("The schema has no column. Accepted: at least one, such as content.")
    return schema
