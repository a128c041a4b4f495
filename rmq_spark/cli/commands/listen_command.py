"""The command rmq listen: calls a function of a module for every message, until it is stopped."""

import importlib
import logging
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Annotated, Any, TypeVar

import typer

from rmq_spark.cli.arguments import Group, option_help
from rmq_spark.cli.session import session_of
from rmq_spark.client.receiving.listener import DEFAULT_GRACE, Listener
from rmq_spark.client.receiving.listener_settings import DEFAULT_WORKERS
from rmq_spark.errors import InvalidOption
from rmq_spark.options.ensemble_options import HOSTS
from rmq_spark.options.listener_options import DELAY, TIMEOUT
from rmq_spark.options.option import Option
from rmq_spark.options.source_options import DEFAULT_VISIBILITY_TIMEOUT
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, parse_group
from rmq_spark.topics.parsers import duration
from rmq_spark.topics.reasons import reason_of

REPORT_EVERY_S = 60.0
_IMPORTLIB = os.path.dirname(importlib.__file__)
GRACE = Option("--grace", duration(0), "How long a stop waits for messages in work", DEFAULT_GRACE)
LEASE = Option(
    "--visibility-timeout",
    duration(1),
    "After how long others get the messages of a listener that was killed",
    DEFAULT_VISIBILITY_TIMEOUT,
)
ACCEPTED_FUNCTION = "module:function, such as shop.billing:bill"

_T = TypeVar("_T")
_log = logging.getLogger("rmq_spark.listen")


def listen(
    context: typer.Context,
    function: Annotated[
        str, typer.Argument(help=f"What to call: {ACCEPTED_FUNCTION}.", show_default=False)
    ],
    topic: Annotated[
        str, typer.Option(help="The name of a topic: see `rmq topics`.", show_default=False)
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
    delay: Annotated[str | None, typer.Option(help=option_help(DELAY))] = None,
    group: Group = DEFAULT_GROUP_TEXT,
    visibility_timeout: Annotated[str, typer.Option(help=option_help(LEASE))] = str(LEASE.default),
    zookeeper: Annotated[str | None, typer.Option(help=option_help(HOSTS), metavar="HOSTS")] = None,
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
    _log_to_stderr()
    if reload:
        _run_again_on_changes(grace)
        return
    session = session_of(context)
    hosts = _parsed(HOSTS.called("--zookeeper"), zookeeper)
    grace_ms = GRACE.parse(grace)
    called = imported(function)
    with session.broker(patience_s=None) as broker:
        listener = broker.listen(
            topic,
            name,
            called,
            workers=workers,
            processes=processes,
            timeout=_parsed(TIMEOUT.called("--timeout"), timeout),
            delay=_parsed(DELAY.called("--delay"), delay),
            group=parse_group(group),
            visibility_timeout=LEASE.parse(visibility_timeout),
            zookeeper={**session.zookeeper, **({"hosts": hosts} if hosts else {})} or None,
        )
        with _metrics(listener, metrics_host, metrics_port), _reports(listener, workers):
            listener.run(grace=grace_ms)
    _log.info("stopped")


def _parsed(option: Option[_T], text: str | None) -> _T | None:
    return None if text is None else option.parse(text)


def imported(text: str) -> Callable[[Any], Any]:
    """Import a function from the text ``module:function``. Raises InvalidOption.

    Prints where an error in the module itself was raised.
    """
    module, colon, names = text.partition(":")
    if not (module and colon and names):
        raise InvalidOption(f"FUNCTION={text!r} is not accepted. Accepted: {ACCEPTED_FUNCTION}.")
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
        raise InvalidOption(
            f"FUNCTION={text!r}: the module {module} has no {names}. Accepted: {ACCEPTED_FUNCTION}."
        )
    return found  # type: ignore[no-any-return]


def _own_frames(error: Exception) -> TracebackType | None:
    """Return the frames of an import from the user's module on."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename.startswith(
        (__file__, "<frozen", _IMPORTLIB)
    ):
        frames = frames.tb_next
    return frames


def _log_to_stderr() -> None:
    """Log everything from INFO on: a service is watched by its logs."""
    logging.getLogger("rmq_spark").setLevel(logging.NOTSET)
    for name in ("rmq_spark.transport.server", "rmq_spark.metrics.queues"):
        log = logging.getLogger(name)
        log.handlers.clear()
        log.propagate = True
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


@contextmanager
def _reports(listener: Listener, workers: int) -> Iterator[None]:
    """Log the rates of a listener once a minute within the block."""
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(listener, workers, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(listener: Listener, workers: int, ended: threading.Event) -> None:
    before, at_s = (0, 0), time.monotonic()
    while not ended.wait(REPORT_EVERY_S):
        now, now_s = (listener.succeeded, listener.failed), time.monotonic()
        done, failed = (new - old for new, old in zip(now, before, strict=True))
        _log.info(
            "%d succeeded (%.1f/s), %d failed; %d of %d workers at work",
            *(done, done / (now_s - at_s), failed, listener.at_work, workers),
        )
        before, at_s = now, now_s


@contextmanager
def _metrics(listener: Listener, host: str, port: int | None) -> Iterator[None]:
    """Serve metrics within the block, if there is a port."""
    if port is None:
        yield
        return
    try:
        from rmq_spark.metrics.listeners import ListenerCollector
        from rmq_spark.metrics.queues import serve
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"--metrics-port needs {error.name}: pip install 'rmq-spark[metrics]'"
        ) from None
    with serve(ListenerCollector(listener), host, port) as served:
        _log.info("metrics at http://%s:%d/metrics", host, served)
        yield


def _run_again_on_changes(grace: str) -> None:
    """Run this command without --reload, and again whenever a Python file changes."""
    try:
        import watchfiles
    except ModuleNotFoundError:
        raise InvalidOption("--reload needs watchfiles: pip install 'rmq-spark[reload]'") from None
    words = [word for word in sys.argv[1:] if word != "--reload"]
    watchfiles.run_process(
        ".",
        target=shlex.join([sys.executable, "-m", "rmq_spark.cli", *words]),
        target_type="command",
        watch_filter=watchfiles.PythonFilter(),
        sigint_timeout=GRACE.parse(grace) // 1000 + 1,
    )
