"""Tables in Spark's catalog: what CREATE TABLE was given is kept in the schema.

Spark 4.3 gives the options of CREATE TABLE ... USING to the data source when it asks for the
schema, and never again: a SELECT brings none (PythonTable.newScanBuilder sees those of the SELECT
alone). What a schema says about its columns does come again, so they go there.
"""

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from rmq_spark.queue.errors import InvalidOption
from rmq_spark.spark.given import SPARKS_OWN, TABLE_OPTION

_KEY = "rmq.options"


def remembering(schema: StructType, given: Mapping[str, str]) -> StructType:
    """The schema with the options of CREATE TABLE; as it is, where they are of a plain read.

    Raises InvalidOption for a password, which would lie in the catalog for all to read.
    """
    if not any(name.startswith(TABLE_OPTION) for name in given):
        return schema
    kept = {
        name: value
        for name, value in given.items()
        if name.lower() not in SPARKS_OWN and not name.startswith(TABLE_OPTION)
    }
    _refuse_secrets(kept)
    first, *others = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {_KEY: kept})
    return StructType([marked, *others])


def remembered(schema: StructType) -> dict[str, str]:
    """The options that a schema was made with; empty for any other schema."""
    for field in schema.fields:
        if _KEY in field.metadata:
            return dict(field.metadata[_KEY])
    return {}


def _refuse_secrets(kept: Mapping[str, str]) -> None:
    names = {name.lower(): value for name, value in kept.items()}
    if any(name.endswith("password") for name in names) or "@" in names.get("redis.url", ""):
        raise InvalidOption(
            "CREATE TABLE would keep the password of Redis in the catalog for all to read. Leave "
            "it and redis.url out, and give the address with its password to Spark's driver and "
            "executors as RMQ_REDIS_URL; or use CREATE TEMPORARY VIEW, which is not kept."
        )
