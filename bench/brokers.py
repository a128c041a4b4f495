"""What do plain Python programs get from us, from a share group of Kafka, and from RocketMQ?

Messages of 34 bytes are sent as quickly as each client can, and received by one consumer, which
calls a function for each. Then single messages, 100 a second: the time from the send to the
function, and how late messages come that were sent for a time. One broker each; all write to disk.
`make bench-peers` installs what it needs; RocketMQ is left out where its client is missing.
"""

import argparse
import importlib.util
import signal
import sys
from contextlib import ExitStack

import numpy as np
from broker_side import PARTITIONS, Kafka, versions
from measuring import Figure, Report, arguments_of
from plain_sides import SLOTS, Ours, Rocket, ShareGroup, Side, lateness_ms, speeds

from rmq_spark.local.redis import LocalRedis
from tests.rocketmq_broker import RocketMQBroker

A_SECOND = 100
# A Python process sends RocketMQ some thousand messages a second, and Kafka a hundred times that.
OF_ROCKETMQ = 0.05
NOTES = (
    "A ratio above 1 says that we are better: of a time it is theirs by ours.",
    "Redis writes its append-only file and has it on disk each second; the others leave that to "
    f"the system. Kafka's topic has {PARTITIONS} partitions, RocketMQ's 8 queues, ours {SLOTS} "
    "slots.",
    "Ours sends all in one call, Kafka's client in batches that it makes, RocketMQ's each by "
    "itself without waiting for the one before. Ours commits each batch, the share group "
    "acknowledges each, RocketMQ each message. RocketMQ gets a twentieth of the messages.",
    "Late: messages for full seconds, a hundred for each, since RocketMQ's Python client knows no "
    "shorter time. Kafka has no delayed messages.",
)


def main() -> None:
    """Measures, and writes brokers.json and brokers.md."""
    arguments = arguments_of(__doc__, messages=200_000, seconds=5, rounds=3).parse_args()
    report = Report.of("brokers", __doc__)
    clients = ("confluent-kafka", "rocketmq-python-client")
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    report.notes += [*NOTES, versions("kafka_2.13", "rocketmq-proxy", packages=clients)]
    with LocalRedis(arguments.redis) as server, Kafka() as kafka, ExitStack() as stack:
        others: list[Side] = [ShareGroup(kafka)]
        if importlib.util.find_spec("rocketmq"):
            others.append(Rocket(stack.enter_context(RocketMQBroker())))
        measure(report, Ours(server), others, arguments)
        report.write(arguments.results, server)


def measure(report: Report, ours: Side, others: list[Side], arguments: argparse.Namespace) -> None:
    """Sending, receiving and single messages, of all in turns, after a round to warm up.

    A round that is alone does without.
    """
    found: dict[tuple[str, str], list[float]] = {}
    warm_up = int(arguments.rounds > 1)
    for turn in range(arguments.rounds + warm_up):
        for side in (ours, *others):
            for name, value in one_round(side, arguments).items():
                found.setdefault((side.name, name), []).extend([value] if turn >= warm_up else [])
    for (side_name, name), rounds in found.items():
        if side_name == ours.name:
            continue
        is_speed = name in ("send", "receive")
        unit = "messages/s" if is_speed else "ms"
        own = found[ours.name, name]
        report.add(Figure(name, unit, own, side_name, rounds, not is_speed))


def one_round(side: Side, arguments: argparse.Namespace) -> dict[str, float]:
    """One round of a side."""
    share = OF_ROCKETMQ if isinstance(side, Rocket) else 1
    messages = int(share * arguments.messages)
    found = speeds(side, [b'{"order": %010d, "x": "xxxx"}' % number for number in range(messages)])
    count = A_SECOND * arguments.seconds
    late = {"pickup": lateness_ms(side, count, A_SECOND, delayed=False)}
    if not isinstance(side, ShareGroup):
        late["late"] = lateness_ms(side, count, A_SECOND, delayed=True)
    for name, values in late.items():
        found |= {f"{name} p{part}": float(np.percentile(values, part)) for part in (50, 99)}
    return found


if __name__ == "__main__":
    main()
