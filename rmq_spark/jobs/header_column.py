"""Headers as a column of JSON text, in the form of the outbox."""

from pyspark.sql import Column
from pyspark.sql import functions as sql


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
