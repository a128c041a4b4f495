"""Commands that run until Ctrl-C: servers for trials, and metrics for Prometheus."""

import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from rmq_spark.cli.output import print_json, print_line
from rmq_spark.cli.session import ended_by_signals, session_of
from rmq_spark.dev_servers.redis_server import LocalRedis
from rmq_spark.errors import InvalidOption

DEFAULT_METRICS_PORT = 9309


def local(
    zookeeper: Annotated[bool, typer.Option("--zookeeper", help="Also start a ZooKeeper.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON.")] = False,
) -> None:
    """Run a Redis for trials until Ctrl-C.

    Its messages are lost when it ends.
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
                print_line(f"export {name}={value}")
            print_line(
                "Paste this into other terminals. Ctrl-C ends Redis and deletes its messages."
            )
        sys.stdout.flush()
        ended.wait()


def metrics(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
    ] = (DEFAULT_METRICS_PORT),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Only print a dashboard for Grafana.")
    ] = False,
) -> None:
    """Serve metrics of all queues to Prometheus until Ctrl-C."""
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
        print_line(f"http://{host}:{served}/metrics")
        sys.stdout.flush()
        ended.wait()
