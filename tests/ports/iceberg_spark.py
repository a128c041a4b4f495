"""Iceberg's connector for Spark, where there is one, and catalogs that only it uses."""

import uuid
from pathlib import Path

import pyspark
import pytest
from pyiceberg.table import StaticTable

from ..jars import jars

POM = Path(__file__).parent / "iceberg_pom.xml"
SPARK = pyspark.__version__[:3]
IS_FOR_THIS_SPARK = SPARK in ("4.0", "4.1")
CATALOG = "org.apache.iceberg.spark.SparkCatalog"


def connector() -> str:
    """The jar of the connector, for spark.jars; without it the test is skipped."""
    if not IS_FOR_THIS_SPARK:
        pytest.skip(f"Iceberg has no connector for Spark {SPARK}.")
    return ",".join(jars(POM, "connector", spark=SPARK))


def found_connector() -> str:
    """The same; empty where Maven does not get it, and for a Spark that has none."""
    try:
        return connector()
    except (pytest.fail.Exception, pytest.skip.Exception):
        return ""


class SparkWarehouse:
    """A catalog of Spark in a folder, under a name that no other has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = f"lake_{uuid.uuid4().hex[:8]}"
        self.table = f"{self.catalog}.shop.orders"
        key = f"spark.sql.catalog.{self.catalog}"
        self.settings = {key: CATALOG, f"{key}.type": "hadoop", f"{key}.warehouse": str(folder)}

    def options(self) -> list[str]:
        """The settings as options of a job."""
        return [part for pair in self.settings.items() for part in ("--conf", "=".join(pair))]

    def latest(self) -> Path | None:
        """The newest description of the table."""
        found = (self.folder / "shop" / "orders" / "metadata").glob("v*.metadata.json")
        return max(found, key=lambda one: int(one.name.split(".")[0][1:]), default=None)

    def seen(self) -> StaticTable:
        """The table as PyIceberg reads it now."""
        return StaticTable.from_metadata(str(self.latest()))

    def rows(self) -> list[dict]:
        """The rows of the table, as PyIceberg reads them."""
        return self.seen().scan().to_arrow().to_pylist()
