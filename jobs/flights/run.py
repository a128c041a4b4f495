"""The course of the demo: what is sent and received when."""

from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from jobs.flights import flights as source
from jobs.flights.check import compare
from jobs.flights.flights import DEPARTURES, REBOOKING, REPLANNING, TYPES
from jobs.flights.lateness import measure_lateness
from jobs.flights.place import Place
from jobs.flights.progress import Progress
from jobs.flights.report import Outcome
from jobs.flights.route import Route
from rmq_spark.client import Broker

# The year passes in this time.
YEAR_MS = 25_000
# It begins when the flights are surely sent: lateness is to tell about receiving.
LEAD_MS = 3_000
SENT_A_MS = 50
# Changes to an aircraft's plan within this time after the first are one message.
TIME_RANGE = "2s"
BOOKINGS_A_TRIGGER = 100_000


class Run:
    """One run: its input, its topics, and when its year begins."""

    def __init__(
        self, spark: SparkSession, broker: Broker, csv: Path, folder: Path, output: Path
    ) -> None:
        self._spark = spark
        self._csv = csv
        self._checkpoints = folder / "checkpoints"
        self._broker = broker
        self._output = output
        self._start_ms = 0
        self._flights = source.read_flights(spark, csv)
        self._amount = self._flights.count()
        unknown = self._flights.filter("tail IS NULL").count()
        print(
            f"{self._amount} flights; {unknown} of unknown aircraft are not sent to {REPLANNING}.\n"
            f"Once they are sent, their year passes in {YEAR_MS // 1000} s. In most of the other "
            "time, the demo waits for Spark: to start, to plan the first batches, and to compare.",
            flush=True,
        )

    def transport(self, place: Place) -> list[Outcome]:
        """Sends and receives everything, then compares. Raises DemoFailed, RmqError."""
        routes = {
            topic: Route(self._broker, topic, kind, place, parquet_folder(self._output, topic))
            for topic, kind in TYPES.items()
        }
        with ExitStack() as stack:
            stack.enter_context(Progress([route.queue for route in routes.values()]))
            for route in routes.values():
                stack.callback(route.stop)
            stack.enter_context(place.meanwhile(routes[DEPARTURES].queue))
            self._replan_and_depart(routes[REPLANNING], routes[DEPARTURES])
            self._rebook(routes[REBOOKING])
        print("Comparing the files with the input ...", flush=True)
        return [self._outcome(route) for route in routes.values()]

    def _replan_and_depart(self, planning: Route, departing: Route) -> None:
        """The last changes of plans are received while the flights wait for their time."""
        planning.receive(self._spark, self._checkpoints)
        departing.receive(self._spark, self._checkpoints)
        for month in _months(self._flights):
            planning.send(source.replanning(month), timeRange=TIME_RANGE)
        self._start_ms = departing.queue.now_ms() + LEAD_MS + self._amount // SENT_A_MS
        departing.send(source.departures(self._flights, self._start_ms, YEAR_MS))
        planning.finish()
        departing.finish()

    def _rebook(self, booking: Route) -> None:
        """Sent first, then received: only what waits can be put in order."""
        booking.send(source.rebooking(self._flights))
        booking.receive(
            self._spark, self._checkpoints, maxRecordsPerTrigger=str(BOOKINGS_A_TRIGGER)
        )
        booking.finish()

    def _outcome(self, route: Route) -> Outcome:
        counters = route.queue.figures().counters
        return Outcome(
            topic=route.topic,
            type=TYPES[route.topic],
            sent=counters["accepted"],
            merged=counters["merged"],
            compared=compare(
                self._spark,
                route.topic,
                self._csv,
                route.parquet,
                start_ms=self._start_ms,
                year_ms=YEAR_MS,
            ),
            sent_per_s=counters["accepted"] / route.sending_s,
            received_per_s=route.received_per_s(),
            lateness=measure_lateness(self._spark, route.parquet),
        )


def parquet_folder(output: Path, topic: str) -> Path:
    """Where a topic's messages end up."""
    return output / f"{topic.lower()}.parquet"


def _months(flights: DataFrame) -> list[DataFrame]:
    months = sorted(row.month for row in flights.select("month").distinct().collect())
    return [flights.filter(flights.month == month) for month in months]
