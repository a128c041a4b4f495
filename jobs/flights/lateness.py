"""How late messages came: from their due time until the file that holds them was complete.

The end is the time of the Parquet file's last change, so waiting for the trigger, claiming,
travelling to the executor and writing are all in it. Spark lists the file some 50 ms later.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

BUCKET_MS = 250
_LATE_MS = "unix_millis(_metadata.file_modification_time) - unix_millis(dueTime) AS late_ms"


@dataclass(frozen=True)
class Lateness:
    """In ms: of all messages with a due time, and of those due in each BUCKET_MS.

    buckets: due time in ms since 1970, p50, p99; in the order of time.
    """

    p50_ms: float
    p99_ms: float
    buckets: list[tuple[int, float, float]]


def measure_lateness(spark: SparkSession, parquet: Path) -> Lateness | None:
    """What the files tell, or None where no message has a due time."""
    messages = spark.read.parquet(str(parquet)).filter("dueTime IS NOT NULL")
    late = messages.selectExpr("unix_millis(dueTime) AS due_ms", _LATE_MS)
    p50_ms, p99_ms = late.agg(*_percentiles()).collect()[0]
    if p50_ms is None:
        return None
    bucket = F.expr(f"due_ms div {BUCKET_MS} * {BUCKET_MS}").alias("due_ms")
    buckets = late.groupBy(bucket).agg(*_percentiles()).orderBy("due_ms").collect()
    return Lateness(p50_ms, p99_ms, [(row[0], row[1], row[2]) for row in buckets])


def _percentiles() -> list[Column]:
    return [F.percentile("late_ms", F.lit(share)) for share in (0.5, 0.99)]


def draw_lateness(measured: dict[str, Lateness], png: Path) -> None:
    """Writes the picture of lateness over time, a panel for each topic."""
    figure = Figure(figsize=(9, 3 * len(measured)), layout="constrained")
    panels = figure.subplots(len(measured), squeeze=False)[:, 0]
    for panel, (topic, lateness) in zip(panels, measured.items(), strict=True):
        first_ms = lateness.buckets[0][0]
        seconds = [(due_ms - first_ms) / 1000 for due_ms, _, _ in lateness.buckets]
        panel.plot(seconds, [p99 for _, _, p99 in lateness.buckets], marker=".", label="p99")
        panel.plot(seconds, [p50 for _, p50, _ in lateness.buckets], marker=".", label="p50")
        panel.set(title=topic, xlabel="due, s after the first", ylabel="late, ms", ylim=(0, None))
        panel.legend()
        panel.grid(alpha=0.3)
    figure.savefig(png)
