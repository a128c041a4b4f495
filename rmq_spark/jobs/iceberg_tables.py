"""Tables of Apache Iceberg, which PyIceberg reaches: Spark needs no connector.

Iceberg publishes its connector for Spark late, and for each version of Spark another one. PyIceberg
works with any, and reaches catalogs of every kind (SQL, REST, Hive, Glue).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from rmq_spark.jobs.program import JobFailed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TABLE, CATALOG = "table", "catalog"
_DEFAULT = "default"  # PyIceberg's own name for a catalog without a name


def open_catalog(options: Mapping[str, str]) -> Catalog:
    """Open the catalog that options describe, as PyIceberg names them.

    The option catalog chooses its name. PyIceberg adds what its configuration file and the
    environment say of a catalog with this name, such as secrets. Raises JobFailed.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise JobFailed(
            f"The format iceberg needs {error.name}: pip install 'rmq-spark[iceberg]'"
        ) from error
    properties = {n: value for n, value in options.items() if n not in (TABLE, CATALOG)}
    name = options.get(CATALOG, _DEFAULT)
    try:
        catalog = load_catalog(name, **properties)
        catalog.list_namespaces()  # reaches the server, if there is one
    except Exception as error:  # each kind of catalog has its own errors
        raise JobFailed(
            f"The Iceberg catalog {name} cannot be opened: {first_line(error)}. Describe it with "
            "options such as type=sql, uri=... and warehouse=..., or in PyIceberg's own "
            "configuration."
        ) from error
    return catalog


def read_table(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the rows that a table holds now. They pass through the driver. Raises JobFailed."""
    from_catalog = open_catalog(options)
    from pyiceberg.exceptions import NoSuchTableError

    try:
        rows = from_catalog.load_table(options[TABLE]).scan().to_arrow()
    except NoSuchTableError as error:
        raise JobFailed(f"There is no Iceberg table {options[TABLE]}.") from error
    return spark.createDataFrame(rows)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
