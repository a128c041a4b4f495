"""The program rmq, which turns an error of rmq_spark into a line on stderr and an exit code."""

import io
import logging
import os
import sys
from collections.abc import Callable, Sequence

from rmq_spark import exit_codes
from rmq_spark.errors import RmqError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code.

    arguments: None for those of the process. Exit codes: 0 done; 1 failed, or you answered no, or
    the reader of the output is gone; 2 wrong option, topic or message; 3 nothing matched, or
    nothing is due; 130 interrupted.
    """
    try:
        from rmq_spark.cli.app import app
    except ModuleNotFoundError as error:
        print(f"rmq needs {error.name}: pip install 'rmq-spark[cli]'", file=sys.stderr)  # noqa: T201
        return exit_codes.FAILED
    _log_to_stderr()
    code = _run(app, arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # At its end, Python flushes the rest of the buffer, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _not_written(error)
    return code


def _log_to_stderr() -> None:
    """Log to stderr that a call to Redis is retried, and why ``rmq metrics`` lacks a queue.

    Nothing else: ``_run`` prints a lasting error.
    """
    for name in ("rmq_spark", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("rmq_spark.transport.server", "rmq_spark.metrics.queues"):
        log = logging.getLogger(name)
        log.setLevel(logging.WARNING)
        if not log.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(message)s"))
            log.addHandler(handler)
            log.propagate = False


def _run(app: Callable[..., object], arguments: Sequence[str] | None) -> int:
    """Run the Typer app. Prints its error and returns an exit code."""
    from rmq_spark.cli.session import flags  # needs typer, which may be missing

    if sys.stdout is None:  # the parent process has closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a content may hold any character
    try:
        with flags(group="--group"):
            app(args=arguments, prog_name="rmq")
    except RmqError as error:
        print(f"rmq: {error}", file=sys.stderr)  # noqa: T201 - a program
        return exit_codes.of_error(error)
    except OSError as error:
        return _not_written(error)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _not_written(error: OSError) -> int:
    """Return the exit code after a failed write. Prints the error unless the reader is gone."""
    if not isinstance(error, BrokenPipeError):
        print(f"rmq: {error}", file=sys.stderr)  # noqa: T201 - a program
    return exit_codes.FAILED
