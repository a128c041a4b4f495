"""Compares what was delivered with the input. Both are counted by Spark SQL, each from its files.

Nothing here uses what the senders computed: the expected messages are derived from the CSV again.
"""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.flights.flights import (
    DEPARTURES,
    MINUTES_A_YEAR,
    PRIORITY_CANCELLED,
    PRIORITY_ON_TIME,
    REBOOKING,
    REPLANNING,
)

# key: what tells messages apart; value: what decides about their delivery.
_EXPECTED = {
    DEPARTURES: """
        SELECT concat(time_hour, ' ', carrier, ' ', flight) AS key,
               {start_ms} + timestampdiff(
                   MINUTE, TIMESTAMP '2013-01-01 00:00:00',
                   make_timestamp(int(year), int(month), int(day), int(hour), int(minute), 0)
               ) * {year_ms} div {minutes_a_year} AS value
        FROM {csv}""",
    REPLANNING: "SELECT tailnum AS key, NULL AS value FROM {csv} WHERE tailnum <> 'NA'",
    REBOOKING: """
        SELECT concat(time_hour, ' ', carrier, ' ', flight) AS key,
               if(dep_delay = 'NA', {cancelled}, {on_time} + try_cast(dep_delay AS BIGINT)) AS value
        FROM {csv}""",
}
_DELIVERED = {
    DEPARTURES: """
        SELECT get_json_object(content, '$.flight') AS key, unix_millis(dueTime) AS value
        FROM {parquet}""",
    REPLANNING: "SELECT content AS key, NULL AS value FROM {parquet}",
    REBOOKING: """
        SELECT get_json_object(content, '$.flight') AS key, priority AS value FROM {parquet}""",
}
_COMPARED = """
    WITH e AS (SELECT key, any_value(value) AS value, count(*) AS n FROM {expected} GROUP BY key),
         d AS (SELECT key, any_value(value) AS value, count(*) AS n FROM {delivered} GROUP BY key)
    SELECT coalesce(sum(e.n), 0) AS expected,
           coalesce(sum(d.n), 0) AS delivered,
           count_if(d.n IS NULL) AS missing,
           count_if(e.n IS NULL) AS unexpected,
           count_if(e.value <> d.value) AS altered
    FROM e FULL OUTER JOIN d ON e.key = d.key"""
# What makes a delivery the same message. An aircraft that was sent again after its delivery is
# another message, with another due time.
_DUPLICATED = {
    DEPARTURES: "SELECT count(*) - count(DISTINCT content) AS n FROM {parquet}",
    REPLANNING: "SELECT count(*) - count(DISTINCT struct(content, dueTime)) AS n FROM {parquet}",
    REBOOKING: "SELECT count(*) - count(DISTINCT content) AS n FROM {parquet}",
}


@dataclass(frozen=True)
class Compared:
    """expected, delivered: messages. missing, unexpected: keys. altered: another time or priority.

    duplicated: deliveries of one message after the first.
    """

    expected: int
    delivered: int
    missing: int
    unexpected: int
    altered: int
    duplicated: int


def compare(
    spark: SparkSession, topic: str, csv: Path, parquet: Path, *, start_ms: int, year_ms: int
) -> Compared:
    """The input against what was delivered; the year of departures began at start_ms."""
    delivered = spark.read.parquet(str(parquet))
    expected = spark.sql(
        _EXPECTED[topic],
        csv=spark.read.csv(str(csv), header=True),
        start_ms=start_ms,
        year_ms=year_ms,
        minutes_a_year=MINUTES_A_YEAR,
        cancelled=PRIORITY_CANCELLED,
        on_time=PRIORITY_ON_TIME,
    )
    keys = spark.sql(_DELIVERED[topic], parquet=delivered)
    compared = spark.sql(_COMPARED, expected=expected, delivered=keys).collect()[0]
    duplicated = spark.sql(_DUPLICATED[topic], parquet=delivered).collect()[0]
    return Compared(**compared.asDict(), duplicated=duplicated.n)
