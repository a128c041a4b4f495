"""Runs the command, and turns our own errors into a line on stderr and an exit code."""

import logging
import sys
from collections.abc import Sequence

from rmq_spark.queue.errors import InvalidMessage, InvalidOption, RmqError, UnknownTopic

FAILED, MISUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code, or exits with it.

    0 done; 1 failed, or the answer was no, or nobody reads its output any more; 2 misused: an
    option, a topic or a message that is none; 3 nothing matched; 130 interrupted.
    """
    try:
        from rmq_spark.cli.app import app
    except ModuleNotFoundError as error:
        print(f"rmq needs {error.name}: pip install 'rmq-spark[cli]'", file=sys.stderr)  # noqa: T201
        return FAILED
    for name in ("rmq_spark", "kazoo"):  # what fails at last is told
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        app(args=arguments, prog_name="rmq")
    except RmqError as error:
        print(f"rmq: {error}", file=sys.stderr)  # noqa: T201 - a program
        misused = isinstance(error, InvalidOption | InvalidMessage | UnknownTopic)
        return MISUSED if misused else FAILED
    return 0
