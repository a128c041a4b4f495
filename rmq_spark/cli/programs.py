"""Commands that start programs: local, metrics, console, job; and size, which asks for a load."""

import logging
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import Json
from rmq_spark.cli.output import print_json, print_line, print_log, print_remark, print_table
from rmq_spark.cli.session import ended_by_signals, needing, session_of, wait_for
from rmq_spark.client.broker import Broker
from rmq_spark.errors import (
    RmqError,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    cannot_listen,
)
from rmq_spark.inspect.checks import denial_of, permission_remedy, seen_of, software_of
from rmq_spark.inspect.sizing import (
    MEASURED_BYTES,
    MEASURED_SERVER,
    DeploymentSize,
    deployment_size,
    measure_message_bytes,
)
from rmq_spark.jobs.program import OWNS_SLOTS, main
from rmq_spark.local.redis import LocalRedis, bindable
from rmq_spark.options import ZOOKEEPER, in_url
from rmq_spark.ownership.zookeeper import parse_ensemble
from rmq_spark.redis.failures import denied_command

DEFAULT_METRICS_PORT = 9309
DEFAULT_CONSOLE_PORT = 9310
Port = Annotated[
    int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
]
# Where programs look for Redis that are told no address.
USUAL_PORT = 6379
_NOT_MEASURED = "Nothing was measured on your Redis"
_WRITES_OF_TRIAL = ("pexpire", "unlink", "zadd")
MOST_MESSAGES, MOST_RATE, MOST_BYTES = 10**13, 10**9, 2**20


def local(
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help=f"The port of Redis. Without it, {USUAL_PORT}, or any other if that is taken.",
        ),
    ] = None,
    zookeeper: Annotated[bool, typer.Option("--zookeeper", help="Also start a ZooKeeper.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON.")] = False,
) -> None:
    """Run a Redis for trials until Ctrl-C.

    Its messages are lost when it ends.
    """
    with ended_by_signals() as ended, ExitStack() as stack:
        server = stack.enter_context(LocalRedis(port=_free_port(port)))
        found = {"RMQ_REDIS_URL": server.url}
        if zookeeper:
            from rmq_spark.local.zookeeper import LocalEnsemble

            found["zookeeper.hosts"] = stack.enter_context(LocalEnsemble()).hosts
        if as_json:
            print_json(found)
        else:
            print_line(f"export RMQ_REDIS_URL={server.url}")
            if zookeeper:
                print_line(f"# --zookeeper {found['zookeeper.hosts']}, in Spark zookeeper.hosts")
            is_default = server.port == USUAL_PORT
            paste = "Programs look there by default" if is_default else "Paste this elsewhere"
            print_line(f"{paste}. Ctrl-C ends Redis and deletes its messages.")
        wait_for(ended)


def _free_port(wanted: int | None) -> int | None:
    """Return the port that a user wants, or else the usual one if it is free; None for any."""
    try:
        return bindable(USUAL_PORT if wanted is None else wanted)
    except OSError as error:
        if wanted is None:
            return None
        raise cannot_listen("127.0.0.1", wanted, error) from None


def metrics(
    context: typer.Context,
    port: Port = DEFAULT_METRICS_PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Only print a dashboard for Grafana.")
    ] = False,
) -> None:
    """Serve metrics of all queues to Prometheus until Ctrl-C."""
    with needing("metrics", "rmq metrics"):
        from rmq_spark.inspect.prometheus import QueueCollector, dashboard_json, serve
    if dashboard:
        sys.stdout.write(dashboard_json())
        return
    session = session_of(context)
    with suppress(ServerError):  # it may come back, and rmq_up says that it is away
        session.broker().close()
    collector = QueueCollector(session.broker)
    with ended_by_signals() as ended, serve(collector, host, port) as served:
        print_line(f"http://{in_url(host)}:{served}/metrics")
        wait_for(ended)


def console(
    context: typer.Context,
    port: Port = DEFAULT_CONSOLE_PORT,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. An address that others can reach needs --tokens."
        ),
    ] = "127.0.0.1",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let users change queues, not only view them.")
    ] = False,
    hide_contents: Annotated[
        bool,
        typer.Option("--hide-contents", help="Show no content, key, header or reason of messages."),
    ] = False,
    tokens: Annotated[
        Path | None,
        typer.Option(help="A file with the users: on each line a name, a blank and a token."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Also answer under this host name; repeatable.", metavar="NAME"),
    ] = None,
) -> None:
    """Show topics, messages and consumers in the browser.

    The pages only show, unless you add --allow-changes. Set zookeeper.hosts with --option before
    the command to see who owns the slots of exclusive topics.
    """
    with needing("console", "rmq console"):
        from rmq_spark.console.app import serve
        from rmq_spark.console.auth import ConsoleSettings, read_tokens
        from rmq_spark.console.state import Console
    settings = ConsoleSettings(
        host=host,
        port=port,
        allow_changes=allow_changes,
        hide_contents=hide_contents,
        tokens={} if tokens is None else read_tokens(tokens),
        names=tuple(allow_host or ()),
    )
    session = session_of(context)
    made = Console(settings, session.broker, parse_ensemble(session.zookeeper))
    try:
        _ = made.broker  # connects
    except ServerUnavailable as error:  # the pages say so, and show more when it is back
        print_remark(str(error))
    print_log("rmq_spark.console", logging.INFO, "%(asctime)s %(message)s")  # who changed what
    with ended_by_signals() as ended, serve(made) as address:
        print_line(address)
        wait_for(ended)


def job(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME [ARGUMENTS]...",
            help="The name of a job, and its own arguments; --help shows them.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a job, such as export or relay_outbox.

    A job is a program for a schedule. Connection options before the command are passed to the job.
    rmq job --help lists the jobs. relay_outbox and expire need no Spark.
    """
    # The job's own options come last, so that they override those of the connection.
    name, own = (arguments or [])[:1], (arguments or [])[1:]
    connection = [
        part
        for option, value in session_of(context).options.items()
        if name == [OWNS_SLOTS] or not option.startswith(ZOOKEEPER)
        for part in ("--option", f"{option}={value}")
    ]
    is_named = name and not name[0].startswith("-")
    raise typer.Exit(main([*name, *(connection if is_named else []), *own]))


def size(
    context: typer.Context,
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

    If Redis answers, the command measures there how much memory a message takes, with a trial that
    leaves nothing behind. Everything else is worked out from what a message was measured to cost on
    a small machine; measure on yours before you buy.
    """
    message_bytes, server = _measured(context, content_bytes)
    found = deployment_size(messages, rate, content_bytes, message_bytes)
    if as_json:
        print_json({**_fields(found), "measuredOn": server})
        return
    print_table(("what", "how much", "because"), _rows(found))
    worked_out = "all figures"
    if server:
        print_remark(f"Measured on {server}: the memory of a message.")
        worked_out = "all other figures"
    print_remark(f"Worked out for {MEASURED_SERVER} on two cores: {worked_out} (docs/scaling.md).")


def _measured(context: typer.Context, content_bytes: int) -> tuple[float | None, str | None]:
    """Measure the memory of a message. Returns it and the server; None, None if none allows it."""
    try:
        with session_of(context).broker(patience_s=0) as broker:
            server = broker.server
            try:
                measured = measure_message_bytes(server, content_bytes, broker.key_prefix)
            except ServerRefused as error:
                print_remark(f"{_NOT_MEASURED}: {denial_of(error)}. {_remedy(broker, error)}")
                return None, None
            return measured, f"{software_of(*server.infos().values())} at {server.address}"
    except RmqError as error:
        print_remark(f"{_NOT_MEASURED}: {seen_of(error).rstrip('.')}.")
        return None, None


def _remedy(broker: Broker, error: ServerRefused) -> str:
    if denied_command(str(error)) in _WRITES_OF_TRIAL:
        return (
            "The trial writes, which a reader must not. Measure as the user rmq of "
            "docs/security.md with +memory|usage."
        )
    return f"To permit it: {permission_remedy(broker, error)}"


def _rows(found: DeploymentSize) -> list[tuple[Any, ...]]:
    by_data = found.masters_for_data >= found.masters_for_rate
    return [
        (
            "Redis masters",
            found.masters,
            f"{found.masters_for_data:,} for the data, {found.masters_for_rate:,} for the rate; "
            f"the {'data' if by_data else 'rate'} decides",
        ),
        ("replicas", found.masters, "one for each master"),
        ("data", _gigabytes(found.data_bytes), f"{found.message_bytes:,.0f} bytes a message"),
        ("memory a machine", _gigabytes(found.machine_bytes), "data, and what writing files takes"),
        ("slotAmount", found.slots, "fixed forever"),
        ("cores of Spark", found.cores, "send and receive, half busy; your own work comes on top"),
        ("queries", found.queries, "each plans for its share of the slots"),
        ("planning a batch", f"{found.plan_s:.2f} s", "commit and plan, in each driver"),
        ("connections a master", found.connections, "of drivers, executors and senders"),
        ("ZooKeeper", f"{found.zookeeper_pings:,.1f} pings/s", "three servers; no write meanwhile"),
        ("ZooKeeper, a change", f"{found.zookeeper_writes:,} writes", "a query comes or goes"),
    ]


def _fields(found: DeploymentSize) -> dict[str, Any]:
    return {
        "messages": found.messages,
        "rate": found.rate,
        "contentBytes": found.content_bytes,
        "messageBytes": round(found.message_bytes, 1),
        "redisMasters": found.masters,
        "redisReplicas": found.masters,
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
