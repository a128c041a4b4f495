"""The command rmq listen: calls a function of a module for every message, until it is stopped."""

import importlib
import logging
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import Group, Topic, option_help, parsed
from rmq_spark.cli.output import log_everything
from rmq_spark.cli.session import needing, session_of
from rmq_spark.client.receiving.listener import DEFAULT_GRACE, DEFAULT_WORKERS, Listener
from rmq_spark.errors import InvalidOption
from rmq_spark.options import RETRY_DELAY, TIMEOUT, VISIBILITY_TIMEOUT, ZOOKEEPER_HOSTS, in_url
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, parse_group
from rmq_spark.topics.parsing import Option, duration
from rmq_spark.topics.reasons import reason_of

REPORT_EVERY_S = 60.0
# Tells the process that --reload runs which process has started it.
_RELOADER = "RMQ_RELOADER"
# How often that process looks whether the other one is there.
_RELOADER_CHECK_S = 1.0
_IMPORTLIB = os.path.dirname(importlib.__file__)
GRACE = Option("--grace", duration(0), "How long a stop waits for messages in work", DEFAULT_GRACE)
LEASE = replace(
    VISIBILITY_TIMEOUT.called("--visibility-timeout"),
    help="After how long others get the messages of a listener that was killed",
)
ACCEPTED_FUNCTION = "module:function, such as shop.billing:bill"

_log = logging.getLogger("rmq_spark.listen")


def listen(
    context: typer.Context,
    topic: Topic,
    function: Annotated[
        str, typer.Argument(help=f"What to call: {ACCEPTED_FUNCTION}.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Option(
            help="The name of this listener. One process at a time may use it.", show_default=False
        ),
    ],
    workers: Annotated[
        int, typer.Option(min=1, help="How many messages are in work at the same time.")
    ] = DEFAULT_WORKERS,
    processes: Annotated[
        bool, typer.Option("--processes", help="Call the function in processes, not in threads.")
    ] = False,
    timeout: Annotated[str | None, typer.Option(help=option_help(TIMEOUT))] = None,
    delay: Annotated[str | None, typer.Option(help=option_help(RETRY_DELAY))] = None,
    group: Group = DEFAULT_GROUP_TEXT,
    visibility_timeout: Annotated[str, typer.Option(help=option_help(LEASE))] = str(LEASE.default),
    zookeeper: Annotated[
        str | None, typer.Option(help=option_help(ZOOKEEPER_HOSTS), metavar="HOSTS")
    ] = None,
    grace: Annotated[str, typer.Option(help=option_help(GRACE))] = str(GRACE.default),
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Serve metrics to Prometheus; 0 takes a free port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address to serve metrics on.")
    ] = "127.0.0.1",
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file here changes.")
    ] = False,
) -> None:
    """Call a function for every message of a topic, until Ctrl-C.

    The function gets one message, and is imported from the current directory or the installed
    packages. It may be async. A message for which it raises comes again. Messages of one slot come
    one after another. SIGTERM ends it as well. Logs go to stderr, and every minute the rates.
    """
    log_everything()
    if reload:
        _run_again_on_changes(grace)
        return
    if reloader := os.environ.pop(_RELOADER, ""):
        threading.Thread(target=_stop_behind, args=(int(reloader),), daemon=True).start()
    if os.getpid() == 1:
        _log.warning(
            "rmq: this is process 1, but does not collect what other processes leave behind. If "
            "the function starts processes, give the container an init: docker run --init."
        )
    session = session_of(context)
    hosts = parsed(ZOOKEEPER_HOSTS.called("--zookeeper"), zookeeper)
    grace_ms = GRACE.parse(grace)
    called = imported(function)
    with session.broker(patience_s=None) as broker:
        listener = broker.listen(
            topic,
            name,
            called,
            workers=workers,
            processes=processes,
            timeout=parsed(TIMEOUT.called("--timeout"), timeout),
            delay=parsed(RETRY_DELAY.called("--delay"), delay),
            group=parse_group(group),
            visibility_timeout=LEASE.parse(visibility_timeout),
            zookeeper={**session.zookeeper, **({"hosts": hosts} if hosts else {})} or None,
        )
        with _metrics(listener, metrics_host, metrics_port), _reports(listener, workers):
            listener.run(grace=grace_ms)
    _log.info("stopped")


def imported(text: str) -> Callable[[Any], Any]:
    """Import a function from ``module:function``. Prints where the module itself failed."""
    module, colon, names = text.partition(":")
    if not (module and colon and names):
        raise InvalidOption.of("FUNCTION", text, ACCEPTED_FUNCTION)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise InvalidOption(
                f"FUNCTION={text!r}: there is no module {missing} in {os.getcwd()} or among the "
                f"installed packages. Accepted: {ACCEPTED_FUNCTION}."
            ) from None
        traceback.print_exception(type(error), error, _own_frames(error))
        raise InvalidOption(
            f"FUNCTION={text!r}: the module {module} cannot be imported: {reason_of(error)}"
        ) from None
    for part in names.split("."):
        found = getattr(found, part, None)
    if found is None:
        why = f"is not there: the module {module} has no {names}"
        raise InvalidOption.of("FUNCTION", text, ACCEPTED_FUNCTION, why)
    return found  # type: ignore[no-any-return]


def _own_frames(error: Exception) -> TracebackType | None:
    """Return the frames of an import from the user's module on."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename.startswith(
        (__file__, "<frozen", _IMPORTLIB)
    ):
        frames = frames.tb_next
    return frames


@contextmanager
def _reports(listener: Listener, workers: int) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(listener, workers, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(listener: Listener, workers: int, ended: threading.Event) -> None:
    before, at_s = (0, 0, 0), time.monotonic()
    while not ended.wait(REPORT_EVERY_S):
        now = (listener.succeeded, listener.failed, listener.snoozed)
        now_s = time.monotonic()
        done, failed, snoozed = (new - old for new, old in zip(now, before, strict=True))
        _log.info(
            "%d succeeded (%.1f/s), %d failed, %d snoozed; %d of %d workers at work",
            *(done, done / (now_s - at_s), failed, snoozed, listener.at_work, workers),
        )
        before, at_s = now, now_s


@contextmanager
def _metrics(listener: Listener, host: str, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    with needing("metrics", "--metrics-port"):
        from rmq_spark.inspect.prometheus import ListenerCollector, serve
    with serve(ListenerCollector(listener), host, port) as served:
        _log.info("metrics at http://%s:%d/metrics", in_url(host), served)
        yield


def _run_again_on_changes(grace: str) -> None:
    """Run this command without --reload, and again whenever a Python file changes."""
    with needing("reload", "--reload"):
        import watchfiles
    os.environ[_RELOADER] = str(os.getpid())
    words = [word for word in sys.argv[1:] if word != "--reload"]
    watchfiles.run_process(
        ".",
        target=shlex.join([sys.executable, "-m", "rmq_spark.cli", *words]),
        target_type="command",
        watch_filter=watchfiles.PythonFilter(),
        sigint_timeout=GRACE.parse(grace) // 1000 + 1,
    )


def _stop_behind(reloader: int) -> None:
    """Stop when the process with --reload has ended, which stops nothing if it is killed."""
    while os.getppid() == reloader:
        time.sleep(_RELOADER_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)
