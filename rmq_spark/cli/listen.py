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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from types import TracebackType
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import option_help, parsed
from rmq_spark.cli.output import logging_everything
from rmq_spark.cli.session import needing, search_here, session_of
from rmq_spark.client.receiving.listener import DEFAULT_GRACE
from rmq_spark.client.receiving.listener_settings import DEFAULT_WORKERS
from rmq_spark.client.service import Service, marked_in
from rmq_spark.errors import InvalidOption
from rmq_spark.options import (
    GROUP,
    RETRY_DELAY,
    TIMEOUT,
    VISIBILITY_TIMEOUT,
    ZOOKEEPER_HOSTS,
    in_url,
)
from rmq_spark.topics.definition import DEFAULT_GROUP_TEXT, parse_group
from rmq_spark.topics.parsing import Option, duration
from rmq_spark.topics.reasons import reason_of

REPORT_EVERY_S = 60.0
# Tells the process that --reload runs which process has started it.
_RELOADER = "RMQ_RELOADER"
# How often that process looks whether the other one is there.
_RELOADER_CHECK_S = 1.0
_IMPORTLIB = os.path.dirname(importlib.__file__)
GRACE = Option("--grace", duration(0), "How long a stop waits for running calls", DEFAULT_GRACE)
LEASE = replace(
    VISIBILITY_TIMEOUT.called("--visibility-timeout"),
    help="After how long others get the messages of a listener that was killed",
)
ACCEPTED_FUNCTION = (
    "TOPIC module:function, such as Orders shop.billing:bill, or modules with functions that "
    "@rmq_spark.listener has marked"
)

_log = logging.getLogger("rmq_spark.listen")


def listen(
    context: typer.Context,
    called: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC FUNCTION | MODULE",
            help=f"What to call: {ACCEPTED_FUNCTION}.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            help="The name of this listener. One process at a time may use it.", show_default=False
        ),
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"How many messages are in work at the same time: {DEFAULT_WORKERS} by default; "
            "of modules, as many as all their functions have.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Call the function in processes, not in threads.")
    ] = False,
    timeout: Annotated[str | None, typer.Option(help=option_help(TIMEOUT))] = None,
    delay: Annotated[str | None, typer.Option(help=option_help(RETRY_DELAY))] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help=f"{GROUP.plain_help}. Default: {DEFAULT_GROUP_TEXT}.", show_default=False
        ),
    ] = None,
    visibility_timeout: Annotated[
        str | None,
        typer.Option(help=f"{option_help(LEASE)} Default: {LEASE.default}.", show_default=False),
    ] = None,
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
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Also send the messages of all schedules.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file here changes.")
    ] = False,
) -> None:
    """Call a function for every message of a topic, until Ctrl-C.

    A function gets one message, and is imported from the current directory or the installed
    packages. It may be async. If it raises, its message is redelivered. Messages of one slot come
    one after another. SIGTERM ends it as well. Logs go to stderr, and every minute the rates.
    --timeout, --delay, --processes, --group and --visibility-timeout are for a topic and its
    function: those of modules have them in @rmq_spark.listener.
    """
    if reload:
        with logging_everything():
            pass
        _run_again_on_changes(grace)
        return
    if reloader := os.environ.pop(_RELOADER, ""):
        threading.Thread(target=_stop_behind, args=(int(reloader),), daemon=True).start()
    session = session_of(context)
    hosts = parsed(ZOOKEEPER_HOSTS.called("--zookeeper"), zookeeper)
    grace_ms = GRACE.parse(grace)
    servers = {**session.zookeeper, **({"hosts": hosts} if hosts else {})} or None
    own: dict[str, Any] = {
        "timeout": parsed(TIMEOUT.called("--timeout"), timeout),
        "delay": parsed(RETRY_DELAY.called("--delay"), delay),
        "processes": processes or None,
        "group": None if group is None else parse_group(group),
        "visibility_timeout": parsed(LEASE, visibility_timeout),
    }
    given = {option: value for option, value in own.items() if value is not None}
    is_one = len(called) == 2 and ":" not in called[0] and ":" in called[1]
    if not is_one:
        _check_modules(called, given)
    with logging_everything():
        found = [imported(text) for text in called[is_one:]]
    if os.getpid() == 1:
        _log.warning(
            "rmq: this is process 1, but does not collect what other processes leave behind. If "
            "the function starts processes, give the container an init: docker run --init."
        )
    marked = [] if is_one else marked_in(found)
    with session.broker(patience_s=None) as broker:
        if is_one:
            given |= {"workers": workers or DEFAULT_WORKERS, "zookeeper": servers}
            service = Service([broker.listen(called[0], name, found[0], **given)])
        else:
            service = Service.open(broker, name, marked, workers=workers, zookeeper=servers)
        service.scheduler = broker.scheduler() if schedules else None
        beside = service.scheduler or nullcontext()
        with beside, _metrics(service, metrics_host, metrics_port), _reports(service):
            service.run(grace=grace_ms)
    _log.info("stopped")


def _check_modules(called: list[str], given: Iterable[str]) -> None:
    """Refuse functions without a topic, and options that marked functions have themselves."""
    for text in (text for text in called if ":" in text):
        raise InvalidOption.of("FUNCTION", text, ACCEPTED_FUNCTION, "has no topic")
    for option in given:
        raise InvalidOption(
            f"--{option.replace('_', '-')} is for a topic and its function. Functions of modules "
            f"have it in @rmq_spark.listener(..., {option}=...)."
        )


def imported(text: str) -> Any:
    """Import ``module:function``, or a module. Prints where the module itself failed."""
    module, colon, names = text.partition(":")
    if not module or (colon and not names):
        raise InvalidOption.of("FUNCTION", text, ACCEPTED_FUNCTION)
    search_here()
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            of_file = " Leave out .py." if module.endswith(".py") else ""
            raise InvalidOption(
                f"FUNCTION={text!r}: there is no module {missing} in {os.getcwd()} or among the "
                f"installed packages. Accepted: {ACCEPTED_FUNCTION}.{of_file}"
            ) from None
        if isinstance(error, InvalidOption):  # such as of @rmq_spark.listener, which says where
            raise
        traceback.print_exception(type(error), error, _own_frames(error))
        raise InvalidOption(
            f"FUNCTION={text!r}: the module {module} cannot be imported: {reason_of(error)}"
        ) from None
    for part in names.split(".") if names else ():
        found = getattr(found, part, None)
    if found is None:
        why = f"is not there: the module {module} has no {names}"
        raise InvalidOption.of("FUNCTION", text, ACCEPTED_FUNCTION, why)
    return found


def _own_frames(error: Exception) -> TracebackType | None:
    """Return the frames of an import from the user's module on."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename.startswith(
        (__file__, "<frozen", _IMPORTLIB)
    ):
        frames = frames.tb_next
    return frames


@contextmanager
def _reports(service: Service) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(service, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(service: Service, ended: threading.Event) -> None:
    before, at_s = [0, 0, 0], time.monotonic()
    while not ended.wait(REPORT_EVERY_S):
        ran = service.listeners
        counted = [(one.succeeded, one.failed, one.snoozed) for one in ran]
        now = [sum(column) for column in zip(*counted, strict=True)]
        now_s = time.monotonic()
        done, failed, snoozed = (new - old for new, old in zip(now, before, strict=True))
        _log.info(
            "%d succeeded (%.1f/s), %d failed, %d snoozed; %d of %d workers at work",
            *(done, done / (now_s - at_s), failed, snoozed),
            *(sum(one.at_work for one in ran), service.workers),
        )
        before, at_s = now, now_s


@contextmanager
def _metrics(service: Service, host: str, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    with needing("metrics", "--metrics-port"):
        from rmq_spark.inspect.prometheus import ListenerCollector, serve
    with serve(ListenerCollector(*service.listeners), host, port, service) as served:
        _log.info("metrics at http://%s:%d/metrics", in_url(host), served)
        yield


def _run_again_on_changes(grace: str) -> None:
    """Run this command without --reload, and again whenever a Python file changes."""
    with needing("reload", "--reload"):
        import watchfiles
    os.environ[_RELOADER] = str(os.getpid())
    words = [word for word in sys.argv[1:] if word != "--reload"]
    with suppress(KeyboardInterrupt):  # which watchfiles raises at both signals
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
