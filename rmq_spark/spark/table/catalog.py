"""Tables in Spark's catalog: what CREATE TABLE was given is kept in the schema.

Spark 4.3 gives the options of CREATE TABLE ... USING to the data source when it asks for the
schema, and never again: a SELECT brings none (PythonTable.newScanBuilder sees those of the SELECT
alone). What a schema says about its columns does come again, so they go there.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from rmq_spark.errors import InvalidOption
from rmq_spark.options.connection_options import SENTINELS, URL
from rmq_spark.options.option import Option
from rmq_spark.options.table_options import TABLE

_KEY = "rmq.options"
_OF_CATALOG = "option."


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options that somebody gave: those of CREATE TABLE come among properties of the table."""
    own = {
        name.removeprefix(_OF_CATALOG): value
        for name, value in given.items()
        if name.startswith(_OF_CATALOG)
    }
    return own or dict(given)


def is_of_catalog(given: Mapping[str, str]) -> bool:
    """Whether these came with CREATE TABLE."""
    return any(name.startswith(_OF_CATALOG) for name in given)


def remembering(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema with the options of CREATE TABLE.

    Raises InvalidOption for a password, which would lie in the catalog for all to read.
    """
    _refuse_secrets(options)
    first, *others = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {_KEY: dict(options)})
    return StructType([marked, *others])


def remembered(schema: StructType) -> dict[str, str]:
    """The options that a schema was made with; empty for any other schema."""
    for field in schema.fields:
        if _KEY in field.metadata:
            return dict(field.metadata[_KEY])
    return {}


def _refuse_secrets(options: Mapping[str, str]) -> None:
    found = ((TABLE.find(name), text) for name, text in options.items())
    if any(option and _holds_secret(option, text) for option, text in found):
        raise InvalidOption(
            "CREATE TABLE would keep the password of Redis in the catalog for all to read. Leave "
            "it and redis.url out, and give the address with its password to Spark's driver and "
            "executors as RMQ_REDIS_URL; or use CREATE TEMPORARY VIEW, which is not kept."
        )


def _holds_secret(option: Option[Any], text: str) -> bool:
    """Whether a value is a password, or an address that may hold one."""
    is_address = option in (URL, SENTINELS)
    return option.is_secret and (not is_address or "@" in text or "?" in text)
