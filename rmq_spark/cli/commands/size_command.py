"""The command rmq size: works out how large a deployment must be."""

from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import Json
from rmq_spark.cli.output import print_json, print_remark, print_table
from rmq_spark.views.deployment_size import DeploymentSize, deployment_size
from rmq_spark.views.measured_costs import MEASURED_BYTES

MOST_MESSAGES, MOST_RATE, MOST_BYTES = 10**13, 10**9, 2**20


def size(
    messages: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_MESSAGES, help="The most messages that wait.", show_default=False
        ),
    ],
    rate: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_RATE,
            help="Messages a second that are sent, and as many that are received.",
            show_default=False,
        ),
    ],
    content_bytes: Annotated[
        int, typer.Option("--bytes", min=1, max=MOST_BYTES, help="Bytes of a content.")
    ] = MEASURED_BYTES,
    as_json: Json = False,
) -> None:
    """Work out Redis nodes, slots, memory and queries for a load.

    The command asks no server. It multiplies what a message was measured to cost on a small
    machine; measure on yours before you buy.
    """
    found = deployment_size(messages, rate, content_bytes)
    if as_json:
        print_json(_fields(found))
        return
    print_table(("what", "how much", "because"), _rows(found))
    print_remark("Worked out, not measured: docs/scaling.md shows from what.")


def _rows(found: DeploymentSize) -> list[tuple[Any, ...]]:
    each = found.data_bytes / found.messages
    by_data = found.masters_for_data >= found.masters_for_rate
    return [
        (
            "Redis masters",
            found.masters,
            f"{found.masters_for_data:,} for the data, {found.masters_for_rate:,} for the rate; "
            f"the {'data' if by_data else 'rate'} decides",
        ),
        ("replicas", found.masters, "one for each master"),
        ("data", _gigabytes(found.data_bytes), f"{each:,.0f} bytes a message"),
        ("memory a machine", _gigabytes(found.machine_bytes), "data, and what writing files takes"),
        ("slotAmount", found.slots, "fixed forever"),
        ("cores of Spark", found.cores, "send and receive, half busy; your own work comes on top"),
        ("queries", found.queries, "each plans for its share of the slots"),
        ("planning a batch", f"{found.plan_s:.2f} s", "commit and plan, in each driver"),
        ("connections a master", found.connections, "of drivers, executors and senders"),
        ("ZooKeeper", f"{found.zookeeper_pings:,.1f} pings/s", "three servers; no write in work"),
        ("ZooKeeper, a change", f"{found.zookeeper_writes:,} writes", "a query comes or goes"),
    ]


def _fields(found: DeploymentSize) -> dict[str, Any]:
    return {
        "messages": found.messages,
        "rate": found.rate,
        "messageBytes": found.message_bytes,
        "redisMasters": found.masters,
        "redisMastersForRate": found.masters_for_rate,
        "redisMastersForData": found.masters_for_data,
        "dataBytes": found.data_bytes,
        "machineBytes": found.machine_bytes,
        "slotAmount": found.slots,
        "sparkCores": found.cores,
        "queries": found.queries,
        "planSeconds": round(found.plan_s, 3),
        "connectionsAMaster": found.connections,
        "zooKeeperPingsASecond": round(found.zookeeper_pings, 1),
        "zooKeeperWritesAChange": found.zookeeper_writes,
    }


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"
