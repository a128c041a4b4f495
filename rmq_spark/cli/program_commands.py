"""Commands that run until they are ended: servers for trials, figures."""

import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from rmq_spark.cli.output import print_json, say
from rmq_spark.cli.session import ended_by_signals, session_of
from rmq_spark.dev_servers.redis_server import LocalRedis
from rmq_spark.errors import InvalidOption

DEFAULT_METRICS_PORT = 9309


def local(
    zookeeper: Annotated[bool, typer.Option("--zookeeper", help="Start a ZooKeeper, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON.")] = False,
) -> None:
    """Start a Redis for trials, until Ctrl-C.

    When it ends, its messages are gone.
    """
    with ended_by_signals() as ended, ExitStack() as stack:
        found = {"RMQ_REDIS_URL": stack.enter_context(LocalRedis()).url}
        if zookeeper:
            from rmq_spark.dev_servers.zookeeper_ensemble import LocalEnsemble

            found["RMQ_ZOOKEEPER_HOSTS"] = stack.enter_context(LocalEnsemble()).hosts
        if as_json:
            print_json(found)
        else:
            for name, value in found.items():
                say(f"export {name}={value}")
            say("Paste this into other terminals. Ctrl-C ends it, and all its messages are gone.")
        sys.stdout.flush()
        ended.wait()


def metrics(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
    ] = (DEFAULT_METRICS_PORT),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a dashboard for Grafana instead.")
    ] = False,
) -> None:
    """Serve figures of all queues to Prometheus, until Ctrl-C."""
    try:
        from rmq_spark.metrics.queues import QueueCollector, dashboard_json, serve
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"rmq metrics needs {error.name}: pip install 'rmq-spark[metrics]'"
        ) from None
    if dashboard:
        sys.stdout.write(dashboard_json())
        return
    collector = QueueCollector(session_of(context).broker)
    with ended_by_signals() as ended, serve(collector, host, port) as served:
        say(f"http://{host}:{served}/metrics")
        sys.stdout.flush()
        ended.wait()
