"""What is the longest time for which each script and each command of rmq holds Redis?

Redis' slow log says how long each call took. Scripts get as much as one call may hold: 2048
messages to send, 3072 to claim. Commands work on a whole topic of 64 slots, which holds nearly all
messages, half of them due, and in its dead queue a twentieth. The scripts that work on messages
also get large ones. The longest call of each round is a value.
"""

import argparse

from measuring import NOTING, Calls, Figure, Report, arguments_of, noting, python_of_spark
from stalled_commands import ELSEWHERE, Commands
from stalled_large import LargeScenario
from stalled_scripts import BURIED, FIRST, FULL, GONE, LAST, Scenario
from storing import SPAN_MS, store_dead, store_waiting

import rmq_spark
from rmq_spark.client import Broker
from rmq_spark.local.redis import LocalRedis

SLOTS = 64
SLOTS_A_ROUND = 4
DEAD_SHARE = 20
LONGEST_MS = 10.0
KIB = 1024
LARGE_BYTES = {"16 KiB": 16 * KIB, "1 MiB": KIB * KIB}
# Redis also notes the commands within a script, which makes the script slower. Of the rounds that
# are measured, only longer calls are noted.
NOTED_US = 50
NOTICED_MS = 1.0


def main() -> None:
    """Measures, and writes stalls.json and stalls.md."""
    arguments = arguments_of(__doc__, messages=20_000_000, rounds=3).parse_args()
    report = Report.of("stalls", __doc__)
    python_of_spark()
    with (
        LocalRedis(arguments.redis, NOTING) as server,
        rmq_spark.connect(server.url) as broker,
    ):
        fill(broker, arguments.messages)
        measure_scripts(report, broker, arguments)
        measure_large(report, broker, arguments)
        measure_commands(report, broker, server.url, arguments)
        report.notes += [
            f"{arguments.messages:,} messages. {NOTED_US / 1000} ms stands for that or less.",
            *(f"`rmq {name}` {reason}." for name, reason in ELSEWHERE.items()),
        ]
        report.write(arguments.results, server)


def fill(broker: Broker, messages: int) -> None:
    """Makes the topics of the scenario, and stores messages as if they had been sent."""
    for name, of_type in ((FULL, "FixedTime"), (FIRST, "RangeMerge"), (LAST, "Priority")):
        broker.create(name, of_type, SLOTS)
    broker.create(BURIED, "FixedTime", SLOTS, dead_retention="1ms")
    dead, now_ms = messages // DEAD_SHARE // SLOTS, broker.server.now_ms()
    due_ms = now_ms - SPAN_MS // 2
    for slot in range(SLOTS):
        store_waiting(broker.queue(FULL), slot, messages // SLOTS - 2 * dead, due_ms)
        for name in (FULL, BURIED):
            store_dead(broker.queue(name), slot, dead, now_ms)
    print(f"{messages:,} messages stored", flush=True)


def measure_scripts(report: Report, broker: Broker, arguments: argparse.Namespace) -> None:
    """Runs all scripts: once to see that none is missing, and then in rounds."""
    scenario = Scenario(broker)
    noted = [
        longest_of(run_scripts(scenario, broker, number, above_us))
        for number, above_us in enumerate([0, *[NOTED_US] * arguments.rounds])
    ]
    scripts = sorted(broker.server.script_names.values())
    missing = set(scripts) - noted[0].keys()
    if missing:
        raise SystemExit(f"no call of {', '.join(sorted(missing))} was noted")
    for name in scripts:
        values = [of_round.get(name, NOTED_US / 1000) for of_round in noted[1:]]
        report.add(Figure(f"script {name}", "ms", values, at_most=LONGEST_MS))


def measure_large(report: Report, broker: Broker, arguments: argparse.Namespace) -> None:
    """Runs the scripts that work on messages with large ones. Without a target: see the docs."""
    for size, message_bytes in LARGE_BYTES.items():
        scenario, noted = LargeScenario(broker, message_bytes), []
        for _ in range(arguments.rounds):
            with noting(broker, NOTED_US) as calls:
                scenario.run()
            noted.append(longest_of(calls))
        scripts = set(broker.server.script_names.values())
        for name in sorted(scripts & set().union(*noted) | {"ZRANGE"}):
            values = [of_round.get(name, NOTED_US / 1000) for of_round in noted]
            if max(values) >= NOTICED_MS:
                report.add(Figure(f"{name}, messages of {size}", "ms", values))


def run_scripts(scenario: Scenario, broker: Broker, number: int, above_us: int) -> Calls:
    """One round: some slots, and all topics."""
    broker.create(GONE, "FixedTime", SLOTS)
    first = number * SLOTS_A_ROUND
    with noting(broker, above_us) as calls:
        for slot in range(first, first + SLOTS_A_ROUND):
            scenario.run(slot)
        scenario.run_on_topics()
    return calls


def longest_of(calls: Calls) -> dict[str, float]:
    """The longest call of each name."""
    return {name: spent_ms for spent_ms, name in sorted(calls)}


def measure_commands(
    report: Report, broker: Broker, url: str, arguments: argparse.Namespace
) -> None:
    """Runs all commands in rounds."""
    commands = Commands(broker, url)
    noted: dict[str, list[tuple[float, str]]] = {}
    for number in range(arguments.rounds):
        for name, run in commands.all(number).items():
            commands.prepare(name, number)
            with noting(broker, NOTED_US) as calls:
                run()
            noted.setdefault(name, []).append(max(calls, default=(NOTED_US / 1000, "")))
    for name, longest in noted.items():
        values = [spent_ms for spent_ms, _ in longest]
        shown = f"rmq {name} ({max(longest)[1] or 'nothing noted'})"
        report.add(Figure(shown, "ms", values, at_most=LONGEST_MS))


if __name__ == "__main__":
    main()
