"""Headers as JSON text: the form in which a database keeps them, for the outbox and export."""

import base64
import binascii
import json
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from rmq_spark.spark.schemas import HEADERS

_ACCEPTED = (
    'null, a JSON object of texts such as {"source": "web"}, or a JSON array such as '
    '[{"key": "source", "value": "web"}], with valueBase64 in place of value for bytes'
)
_PARSED = StructType([StructField("headers", HEADERS), StructField("reason", StringType())])


def headers_text(headers: Column) -> Column:
    """Write a column of headers as JSON: an array of key and value, or valueBase64 for bytes.

    A value that is null is left out. Without headers, the text is null.
    """

    def fields(header: Column) -> Column:
        text = sql.try_validate_utf8(header["value"].cast("string"))
        encoded = sql.when(text.isNull(), sql.base64(header["value"]))
        return sql.struct(
            header["key"].alias("key"), text.alias("value"), encoded.alias("valueBase64")
        )

    return sql.to_json(sql.transform(headers, fields))


def parsed_headers(text: Column) -> Column:
    """Parse a column of JSON. Returns a struct: headers, and the reason if the text is refused."""
    return sql.udf(_parse, _PARSED, useArrow=False)(text.cast("string"))


def _parse(text: str | None) -> tuple[list[tuple[str, bytes | None]] | None, str | None]:
    if text is None:
        return None, None
    try:
        # Pairs, so that an object may have a name twice.
        found = json.loads(text, object_pairs_hook=_Pairs)
        if isinstance(found, _Pairs):
            return [(name, _value(value)) for name, value in found], None
        if isinstance(found, list):
            return [_header(each) for each in found], None
    except (ValueError, binascii.Error):
        pass
    return None, f"headers is {text[:60]!r}. Accepted: {_ACCEPTED}."


class _Pairs(list[tuple[str, Any]]):
    """The names and values of a JSON object."""


def _header(pairs: Any) -> tuple[str, bytes | None]:
    fields = dict(pairs) if isinstance(pairs, _Pairs) else {}
    key, value = fields.pop("key", None), fields.pop("value", None)
    encoded = fields.pop("valueBase64", None)
    if fields or not isinstance(key, str) or None not in (value, encoded):
        raise ValueError
    if encoded is not None:
        return key, base64.b64decode(_value(encoded) or b"", validate=True)
    return key, _value(value)


def _value(value: Any) -> bytes | None:
    if not isinstance(value, str | None):
        raise ValueError
    return None if value is None else value.encode()
