"""The demo as a command."""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException

from jobs.flights.failure import DemoFailed
from jobs.flights.flights import TYPES, unpack_flights
from jobs.flights.lateness import draw_lateness
from jobs.flights.logged_spark import new_session
from jobs.flights.place import Place, one_redis
from jobs.flights.report import LEGEND, Outcome, differences, gain, table
from jobs.flights.run import Run, parquet_folder
from rmq_spark.client import Broker, RmqError
from rmq_spark.spark.failure_cause import cause

DEFAULT_OUTPUT = Path("demo-output")
LOG = "spark.log"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it. Returns 0 when every message came through as it must."""
    options = _parser().parse_args(arguments)
    return run_demo(options.output, options.flights, one_redis(options.redis_url))


def run_demo(output: Path, flights: int | None, place: AbstractContextManager[Place]) -> int:
    """Runs it there, prints the table, and says whether it was right: 0, or 1.

    flights: only the first so many.
    """
    # Ended from outside, it stops its Redis and Spark all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # What is tried again needs no line of its own; what fails at last is told.
    logging.getLogger("rmq_spark").setLevel(logging.ERROR)
    begin = time.monotonic()
    try:
        outcomes = _transport(output, flights, place)
    except (DemoFailed, RmqError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JError) as error:
        print(f"The demo failed, see {output / LOG}: {cause(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    picture = output / "lateness.png"
    draw_lateness({o.topic: o.lateness for o in outcomes if o.lateness is not None}, picture)
    gains = "\n".join(filter(None, map(gain, outcomes)))
    print(f"\n{table(outcomes)}\n\n{LEGEND}\n\n{gains}\n")
    code = _verdict(outcomes, time.monotonic() - begin)
    print(f"How late messages came, over time, as a picture: {picture}")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Sends the flights of 2013 from New York as three topics, receives them into "
        "Parquet, and compares the files with the input.",
    )
    parser.add_argument("--redis-url", help="a running Redis; without it one is started")
    add_common(parser)
    return parser


def add_common(parser: argparse.ArgumentParser) -> None:
    """The arguments that all demos have."""
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help="a folder (default: %(default)s)"
    )
    parser.add_argument("--flights", type=_amount, help="only the first so many, for a quick look")


def _amount(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of flights; 1 or more")
    return int(text)


def _transport(
    output: Path, most: int | None, place: AbstractContextManager[Place]
) -> list[Outcome]:
    _clear(output)
    log = output / LOG
    # Unlike any other's, so that a Redis in use can be named.
    prefix = f"demo-{uuid.uuid4().hex[:12]}:"
    with (
        tempfile.TemporaryDirectory(prefix="rmq-demo-") as name,
        place as here,
        _broker(here, prefix) as broker,
    ):
        print(f"Redis: {broker.server.address}. Starting Spark, its log: {log}", flush=True)
        csv = unpack_flights(Path(name), most)
        with new_session(log, Path(name), here.spark) as spark:
            return Run(spark, broker, csv, Path(name), output).transport(here)


def _clear(output: Path) -> None:
    """Removes what a former run left, and nothing else. Raises DemoFailed."""
    output.mkdir(parents=True, exist_ok=True)
    for parquet in (parquet_folder(output, topic) for topic in TYPES):
        if (parquet / "_spark_metadata").is_dir():
            shutil.rmtree(parquet)
        elif parquet.exists():
            raise DemoFailed(f"{parquet} exists and is not from a demo: name another --output.")


@contextmanager
def _broker(place: Place, prefix: str) -> Iterator[Broker]:
    """A broker whose topics are deleted at the end."""
    broker = place.connect(prefix)
    try:
        yield broker
    finally:
        for topic in broker.topics():
            broker.delete(topic.name)
        broker.close()


def _verdict(outcomes: Sequence[Outcome], seconds: float) -> int:
    found = [difference for outcome in outcomes for difference in differences(outcome)]
    for difference in found:
        print(f"DIFFERS: {difference}")
    if not found:
        print(f"All as in the input, after {seconds:.0f} s.")
    return 1 if found else 0
