"""Tables in Spark's catalog, which store the options of CREATE TABLE in their schema.

Spark 4.3 passes the options of CREATE TABLE ... USING to the data source only when it asks for the
schema. For a SELECT, it passes only the options of the SELECT (PythonTable.newScanBuilder). It also
passes the metadata of the columns, so this module stores the options of CREATE TABLE there.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from rmq_spark.errors import InvalidOption
from rmq_spark.options.connection_options import SENTINELS, URL
from rmq_spark.options.option import Option
from rmq_spark.options.table_options import TABLE

_METADATA_KEY = "rmq.options"
_CATALOG_PREFIX = "option."


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave, without properties that Spark adds.

    Spark mixes the options of CREATE TABLE with properties of the table, and gives the options the
    prefix ``option.``.
    """
    own = {
        name.removeprefix(_CATALOG_PREFIX): value
        for name, value in given.items()
        if name.startswith(_CATALOG_PREFIX)
    }
    return own or dict(given)


def is_from_catalog(given: Mapping[str, str]) -> bool:
    """Return whether the options come from CREATE TABLE, which gives them a prefix."""
    return any(name.startswith(_CATALOG_PREFIX) for name in given)


def with_stored_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Store the options of CREATE TABLE in the metadata of a schema. Returns the new schema.

    Raises InvalidOption for a password, which every user of the catalog could read.
    """
    _refuse_secrets(options)
    first, *others = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {_METADATA_KEY: dict(options)})
    return StructType([marked, *others])


def stored_options(schema: StructType) -> dict[str, str]:
    """Read the options of CREATE TABLE from the metadata of a schema; empty if it has none."""
    for field in schema.fields:
        if _METADATA_KEY in field.metadata:
            return dict(field.metadata[_METADATA_KEY])
    return {}


def _refuse_secrets(options: Mapping[str, str]) -> None:
    found = ((TABLE.find(name), text) for name, text in options.items())
    if any(option and _holds_secret(option, text) for option, text in found):
        raise InvalidOption(
            "CREATE TABLE would keep the password of Redis in the catalog for all to read. Leave "
            "out the password and redis.url, and give the address with its password to Spark's "
            "driver and executors as RMQ_REDIS_URL; or use CREATE TEMPORARY VIEW, which is not "
            "kept."
        )


def _holds_secret(option: Option[Any], text: str) -> bool:
    """Return whether a value is a password, or an address that may contain one."""
    is_address = option in (URL, SENTINELS)
    return option.is_secret and (not is_address or "@" in text or "?" in text)
