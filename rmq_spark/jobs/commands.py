"""The jobs by name. Every way to start one ends here: ``rmq job``, ``python -m``, spark-submit."""

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException

from rmq_spark import exit_codes
from rmq_spark.errors import RmqError
from rmq_spark.jobs.program import Job
from rmq_spark.spark.failure_cause import cause

PROGRAM = "python -m rmq_spark.jobs"
# By name, the module that defines the job as JOB. Imported by name, because a module that is run
# with python -m would otherwise have to import the table that imports it.
MODULES = {
    "send": "rmq_spark.jobs.send",
    "relay_outbox": "rmq_spark.jobs.outbox.relay_outbox",
    "export": "rmq_spark.jobs.export",
    "requeue_dead": "rmq_spark.jobs.requeue_dead",
    "expire": "rmq_spark.jobs.expire",
    "report": "rmq_spark.jobs.report",
}
DESCRIPTION = "Run a job: a program for a schedule, described in docs/jobs.md."
EXIT_CODES = """\
Exit codes: 0 done; 1 failed; 2 a wrong option, topic or message; 128 and the number of the signal
that ended the job, such as 130 for Ctrl-C.
"""


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the job that the arguments name, and return its exit code.

    arguments: the job's name and its own arguments; by default those of this process.
    program: the command before the job's name, for the help.
    """
    given = new_parser(program).parse_args(arguments)
    return run(given.job, given)


def run_job(name: str) -> NoReturn:
    """Run a job with the arguments of this process, and exit."""
    sys.exit(main([name, *sys.argv[1:]]))


def new_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Return the parser of all jobs. It sets ``job`` to the one that is named."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = parser.add_subparsers(metavar="NAME", required=True, title="jobs")
    for module in MODULES.values():
        job: Job = import_module(module).JOB
        one = names.add_parser(
            job.name,
            help=job.summary,
            description=job.description,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        job.add_arguments(one)
        one.set_defaults(job=job)
    return parser


def run(job: Job, given: argparse.Namespace) -> int:
    """Run a job, print its result or its error, and return its exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rmq_spark").setLevel(logging.INFO)
    # Spark logs here what it then raises, and the job prints.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        print(job.work(given), flush=True)
    except (RmqError, PySparkException, Py4JError) as error:
        text, code = _text_and_code(error)
        print(f"{job.name}: {text}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return exit_codes.DONE


def _text_and_code(error: Exception) -> tuple[str, int]:
    """Return an error as one line, and the exit code for it."""
    if isinstance(error, RmqError):
        return str(error), exit_codes.of_error(error)
    text = cause(error)
    # An error of one of Spark's Python processes arrives as text.
    name, _, message = text.partition(": ")
    if not name.startswith("rmq_spark."):
        return text, exit_codes.FAILED
    is_misuse = name.rpartition(".")[2] in {kind.__name__ for kind in exit_codes.MISUSES}
    return message, exit_codes.MISUSED if is_misuse else exit_codes.FAILED
