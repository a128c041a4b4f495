"""The table of jobs, and the command line that runs one.

All ways to start a job end here: ``rmq job``, ``python -m`` and spark-submit.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import NoReturn

from rmq_spark import exit_codes
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.jobs.program import Job
from rmq_spark.spark.failure_cause import cause, is_of_spark

PROGRAM = "python -m rmq_spark.jobs"
# For each job, the module that defines it as JOB. The table has names, not imports: a job's module
# that is run with python -m imports this module, so importing it here would be circular.
MODULES = {
    "send": "rmq_spark.jobs.send",
    "relay_outbox": "rmq_spark.jobs.relay_outbox",
    "export": "rmq_spark.jobs.export",
    "requeue_dead": "rmq_spark.jobs.requeue_dead",
    "expire": "rmq_spark.jobs.expire",
    "report": "rmq_spark.jobs.report",
}
# What the extra spark installs. Some jobs do without it.
_OF_SPARK = {"pyspark", "py4j", "pyarrow", "numpy", "pandas"}
DESCRIPTION = "Run a job: a program for a schedule, described in docs/jobs.md."
EXIT_CODES = """\
Exit codes: 0 done; 1 failed; 2 a wrong option, topic or message; 128 and the number of the signal
that ended the job, such as 130 for Ctrl-C.
"""


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the job that the arguments name, and return its exit code.

    arguments: the job's name and its own arguments; by default those of this process. program: the
    command before the job's name, for the help.
    """
    parser = new_parser(program)
    given = parser.parse_args(arguments)
    if given.job is None:
        parser.error(f"no job is named. Accepted: {', '.join(MODULES)}")
    return run(given.job, given)


def run_job(name: str) -> NoReturn:
    """Run a job with the arguments of this process, and exit with its exit code."""
    sys.exit(main([name, *sys.argv[1:]]))


def new_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Build the parser of all jobs. It sets ``job`` to the Job that the arguments name."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = parser.add_subparsers(metavar="NAME", title="jobs")
    parser.set_defaults(job=None)
    for name in MODULES:
        job = _job(name)
        one = names.add_parser(
            name,
            help=job.summary,
            description=job.description,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        job.add_arguments(one)
        one.set_defaults(job=job)
    return parser


def _job(name: str) -> Job:
    """Import a job. Without Spark, a job that needs it says so, whatever its arguments are."""
    try:
        job: Job = import_module(MODULES[name]).JOB
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_SPARK:
            raise
        remedy = f"the job {name} needs {missing}: pip install 'rmq-spark[spark]'"
        return Job(name, f"Not installed: {remedy}", _take_any_arguments, partial(_refuse, remedy))
    return job


def _take_any_arguments(parser: argparse.ArgumentParser) -> None:
    parser.prefix_chars = ""
    parser.add_argument("arguments", nargs="*")


def _refuse(remedy: str, _: argparse.Namespace) -> str:
    raise InvalidOption(remedy)


def run(job: Job, given: argparse.Namespace) -> int:
    """Run a job, print its result or its error, and return its exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rmq_spark").setLevel(logging.INFO)
    # Spark logs errors here that it then raises, and that the job prints.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        print(job.work(given), flush=True)
    except Exception as error:
        if not isinstance(error, RmqError) and not is_of_spark(error):
            raise
        text, code = _text_and_code(error)
        print(f"{job.name}: {text}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return exit_codes.DONE


def _text_and_code(error: Exception) -> tuple[str, int]:
    """Return the text of an error and its exit code."""
    if isinstance(error, RmqError):
        return str(error), exit_codes.of_error(error)
    text = cause(error)
    # An error that was raised in one of Spark's Python processes arrives as text only.
    name, _, message = text.partition(": ")
    if not name.startswith("rmq_spark."):
        return text, exit_codes.FAILED
    is_misuse = name.rpartition(".")[2] in {kind.__name__ for kind in exit_codes.MISUSES}
    return message, exit_codes.MISUSED if is_misuse else exit_codes.FAILED
