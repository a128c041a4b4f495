"""Tables in Spark's catalog: the options of CREATE TABLE are kept in the schema.

Spark 4.3 passes the options of CREATE TABLE ... USING to the data source only when it asks for the
schema. A SELECT passes its own options alone (PythonTable.newScanBuilder). Spark does pass the
metadata of the columns again, so the options are stored in it.
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


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave.

    Spark mixes the options of CREATE TABLE with properties of the table, and prefixes them.
    """
    own = {
        name.removeprefix(_OF_CATALOG): value
        for name, value in given.items()
        if name.startswith(_OF_CATALOG)
    }
    return own or dict(given)


def is_from_catalog(given: Mapping[str, str]) -> bool:
    """Return whether the options come from CREATE TABLE."""
    return any(name.startswith(_OF_CATALOG) for name in given)


def with_stored_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Store the options of CREATE TABLE in the metadata of a schema. Returns the new schema.

    Raises InvalidOption for a password, which every user of the catalog could read.
    """
    _refuse_secrets(options)
    first, *others = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {_KEY: dict(options)})
    return StructType([marked, *others])


def stored_options(schema: StructType) -> dict[str, str]:
    """Return the options stored in a schema, or no options."""
    for field in schema.fields:
        if _KEY in field.metadata:
            return dict(field.metadata[_KEY])
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
