"""Does a claim slow down when much is stored, and what memory does a message take?

100 000, 1, 5 and 20 million due messages of 34 bytes in 64 slots. Claims of 1024 messages go round
the slots; each is committed and its messages are sent again, so that as much is stored for the
next. What is timed is the call, reply and all, in one plain process; and what a plan asks of all
slots. Once the messages fall due in the order in which they were stored, once in quite another one,
so that what a claim takes lies scattered in Redis' memory. More than 20 million messages are for
`hundred_million.py`, which this bench then runs instead.
"""

import argparse
import statistics
from collections.abc import Callable

import hundred_million
from growing_topic import SLOTS, Backlog
from measuring import Figure, Report, arguments_of

from rmq_spark.local.redis import LocalRedis

SIZES = (100_000, 1_000_000, 5_000_000, 20_000_000)
TARGET = 1.5


def main() -> None:
    """Measures, and writes backlog.json and backlog.md."""
    arguments = arguments_of(__doc__, messages=SIZES[-1], claims=1000, rounds=3).parse_args()
    if arguments.messages > SIZES[-1]:
        hundred_million.run(arguments)
        return
    report = Report.of("backlog", __doc__)
    with LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        for order in ("in order", "scattered"):
            measure(report, Backlog(server, order == "scattered"), order, arguments)
        report.write(arguments.results, server)


def measure(report: Report, backlog: Backlog, order: str, arguments: argparse.Namespace) -> None:
    """Grows the backlog, and compares every size with the smallest."""
    smallest: dict[str, list[float]] = {}
    for size in (size for size in SIZES if size <= arguments.messages):
        backlog.fill(size)
        for _ in range(SLOTS):
            backlog.claim_ms()  # warms up
        found = times_of(backlog, arguments.claims, arguments.rounds)
        for name, rounds in found.items():
            figure = Figure(f"{name}, {size:,} stored {order}", "ms", rounds)
            if name in smallest:
                figure.against, figure.beside = f"{SIZES[0]:,} stored", smallest[name]
            if name == "claim p99" and size == SIZES[-1]:
                figure.at_most = TARGET
            report.add(figure)
        smallest = smallest or found
        memory = [backlog.bytes_a_message()]
        report.add(Figure(f"memory, {size:,} stored {order}", "bytes a message", memory))


def times_of(backlog: Backlog, claims: int, rounds: int) -> dict[str, list[float]]:
    """By figure, one value a round."""

    def repeated(measured: Callable[[], float], times: int) -> list[list[float]]:
        return [[measured() for _ in range(times)] for _ in range(rounds)]

    spent = repeated(backlog.claim_ms, claims)
    plans = repeated(backlog.plan_ms, 20)
    return {
        "claim p50": [statistics.median(times) for times in spent],
        "claim p99": [statistics.quantiles(times, n=100)[98] for times in spent],
        "plan": [statistics.median(times) for times in plans],
    }


if __name__ == "__main__":
    main()
