"""The program rmq, which turns an error of rmq_spark into a line on stderr and an exit code.

It is ``python -m rmq_spark.cli``, too, for systems where the script rmq is not on PATH.
"""

import io
import os
import sys
from collections.abc import Callable, Sequence

from rmq_spark import process
from rmq_spark.errors import RmqError
from rmq_spark.topics.reasons import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code. arguments: None for those of the process."""
    try:
        from rmq_spark.cli.app import app
        from rmq_spark.cli.output import log_warnings
    except ModuleNotFoundError as error:
        print(f"rmq needs {error.name}: pip install 'rmq-spark[cli]'", file=sys.stderr)  # noqa: T201
        return process.FAILED
    log_warnings()
    code = _run(app, arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # At its end, Python flushes the rest of the buffer, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _not_written(error)
    return code


def _run(app: Callable[..., object], arguments: Sequence[str] | None) -> int:
    from rmq_spark.cli.session import flags  # needs typer, which may be missing

    if sys.stdout is None:  # the parent process has closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a content may hold any character
    try:
        with flags(group="--group"):
            app(args=arguments, prog_name="rmq")
    except RmqError as error:
        print(printable(f"rmq: {error}"), file=sys.stderr)  # noqa: T201 - a program
        return process.code_of_error(error)
    except OSError as error:
        return _not_written(error)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _not_written(error: OSError) -> int:
    if not isinstance(error, BrokenPipeError):
        print(printable(f"rmq: {error}"), file=sys.stderr)  # noqa: T201 - a program
    return process.FAILED


if __name__ == "__main__":
    sys.exit(main())
