"""Commands that run until they are ended: servers to play with, figures."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from rmq_spark.cli.output import print_json, say
from rmq_spark.cli.session import session_of
from rmq_spark.dev_servers.redis_server import LocalRedis
from rmq_spark.errors import InvalidOption

DEFAULT_METRICS_PORT = 9309


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (local, metrics):
        app.command(command.__name__)(command)


def local(
    zookeeper: Annotated[bool, typer.Option("--zookeeper", help="And a ZooKeeper.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON.")] = False,
) -> None:
    """Start a Redis to play with (and a ZooKeeper), until Ctrl-C; their data go with them."""
    with ExitStack() as stack:
        found = {"RMQ_REDIS_URL": stack.enter_context(LocalRedis()).url}
        if zookeeper:
            from rmq_spark.dev_servers.zookeeper_ensemble import LocalEnsemble

            found["RMQ_ZOOKEEPER_HOSTS"] = stack.enter_context(LocalEnsemble()).hosts
        if as_json:
            print_json(found)
        else:
            for name, value in found.items():
                say(f"export {name}={value}")
            say("They run until Ctrl-C; then all that is in them is gone.")
        sys.stdout.flush()
        _wait_for_the_end()


def metrics(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free.")] = (
        DEFAULT_METRICS_PORT
    ),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a dashboard for Grafana and end.")
    ] = False,
) -> None:
    """Serve the figures of all queues to Prometheus, at /metrics, until Ctrl-C."""
    try:
        from rmq_spark.metrics.queues import QueueCollector, dashboard_json, serve
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"rmq metrics needs {error.name}: pip install 'rmq-spark[metrics]'"
        ) from None
    if dashboard:
        sys.stdout.write(dashboard_json())
        return
    with serve(QueueCollector(session_of(context).broker), host, port) as served:
        say(f"http://{host}:{served}/metrics")
        sys.stdout.flush()
        _wait_for_the_end()


@contextmanager
def _ended_by_sigterm() -> Iterator[threading.Event]:
    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_for_the_end() -> None:
    """Until SIGTERM or Ctrl-C; both are how it is meant to end."""
    with _ended_by_sigterm() as ended:
        try:
            ended.wait()
        except KeyboardInterrupt:
            return
