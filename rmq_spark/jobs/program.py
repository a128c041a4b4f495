"""The program of every job: the table of jobs, their command lines, and their end on a signal.

``rmq job`` and the scripts for spark-submit start here. Nothing of Spark is imported before a job
that needs it.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from rmq_spark import process
from rmq_spark.client.broker import Broker
from rmq_spark.errors import InvalidOption, RmqError, without_login
from rmq_spark.inspect.logs import StderrHandler
from rmq_spark.options import CONNECTION, KEY_PREFIX, TOPICS_OF_JOB, TRIGGER
from rmq_spark.redis.connection import connection_of
from rmq_spark.redis.server import Server
from rmq_spark.spark.failure_cause import cause, is_of_spark
from rmq_spark.topics.parsing import Option
from rmq_spark.topics.reasons import printable

# For each job, the module that has it among its JOBS.
MODULES = {
    "send": "rmq_spark.jobs.send",
    "relay_outbox": "rmq_spark.jobs.relay_outbox",
    "export": "rmq_spark.jobs.export",
    "requeue_dead": "rmq_spark.jobs.maintain",
    "expire": "rmq_spark.jobs.maintain",
    "report": "rmq_spark.jobs.maintain",
}
# The job that accepts the options of ZooKeeper: it may own slots.
OWNS_SLOTS = "export"
# What the extra spark installs.
_OF_SPARK = {"pyspark", "py4j", "pyarrow", "numpy", "pandas"}
DESCRIPTION = "Run a job: a program for a schedule, described in docs/jobs.md."
EXIT_CODES = """\
Exit codes: 0 done; 1 failed; 2 a wrong option, topic or message; 128 and the number of the signal
that ended the job, such as 130 for Ctrl-C.
"""
# Formats whose path is a folder of files.
FILES = ("parquet", "orc", "json", "csv", "text", "avro")
JDBC, DELTA, ICEBERG, KAFKA, ROCKETMQ = "jdbc", "delta", "iceberg", "kafka", "rocketmq"
# The options that a format needs, each with the argument that gives it.
_NEEDED = {
    **{form: {"path": "path"} for form in FILES},
    JDBC: {"url": "url", "dbtable": "table"},
    ICEBERG: {"table": "table"},
}
_OPTION = "NAME=VALUE"


@dataclass(frozen=True)
class Job:
    """A program to run on a schedule.

    description: the help; its first paragraph is one line that summarizes the job. add_arguments:
    adds the job's own arguments to a parser. work: does the job, and returns the line that is
    printed at the end. It gets the Spark session, if the job needs one, and the arguments.
    """

    name: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    work: Callable[..., str]
    needs_spark: bool = True


class JobFailed(RmqError):
    """An error for a job that cannot do all its work, although its arguments are right."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = new_parser()
    given = parser.parse_args(arguments)
    if given.job is None:
        parser.error(f"no job is named. Accepted: {', '.join(MODULES)}")
    return run(given.job, given)


def run_job(name: str) -> NoReturn:
    sys.exit(main([name, *sys.argv[1:]]))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(without_login(message))


def new_parser() -> argparse.ArgumentParser:
    """Build the parser of all jobs. It sets ``job`` to the Job that the arguments name."""
    parser = _Parser(
        prog="rmq job",
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
            help=job.description.partition("\n")[0],
            description=job.description,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        job.add_arguments(one)
        if job.needs_spark:
            add_options(
                one, ["--conf"], "a setting of Spark, such as spark.jars=driver.jar; repeatable"
            )
        one.set_defaults(job=job)
    return parser


def _job(name: str) -> Job:
    """Import a job. Without Spark, a job that needs it says so, whatever its arguments are."""
    try:
        job: Job = next(one for one in import_module(MODULES[name]).JOBS if one.name == name)
        if job.needs_spark:
            import_module("rmq_spark.jobs.spark_session")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_SPARK:
            raise
        remedy = f"the job {name} needs {missing}: pip install 'rmq-spark[spark]'"
        refuse = partial(_refuse, remedy)
        return Job(name, f"Not installed: {remedy}", _take_any_arguments, refuse, needs_spark=False)
    return job


def _take_any_arguments(parser: argparse.ArgumentParser) -> None:
    parser.prefix_chars = ""
    parser.add_argument("arguments", nargs="*")


def _refuse(remedy: str, _: argparse.Namespace) -> str:
    raise InvalidOption(remedy)


def run(job: Job, given: argparse.Namespace) -> int:
    logging.basicConfig(handlers=[StderrHandler("%(asctime)s %(levelname)s %(message)s")])
    logging.getLogger("rmq_spark").setLevel(logging.INFO)
    try:
        print(printable(_work(job, given), "\n"), flush=True)
    except Exception as error:
        if not isinstance(error, RmqError) and not is_of_spark(error):
            raise
        text, code = _text_and_code(error)
        print(printable(f"{job.name}: {without_login(text)}", "\n"), file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return process.INTERRUPTED
    return process.DONE


def _work(job: Job, given: argparse.Namespace) -> str:
    if not job.needs_spark:
        return job.work(given)
    from rmq_spark.jobs.spark_session import new_session

    with new_session(job.name, given.conf) as spark:
        return job.work(spark, given)


def _text_and_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, RmqError):
        return str(error), process.code_of_error(error)
    text = cause(error)
    # An error that was raised in one of Spark's Python processes arrives as text only.
    name, _, message = text.partition(": ")
    if not name.startswith("rmq_spark."):
        return text, process.FAILED
    is_misuse = name.rpartition(".")[2] in {kind.__name__ for kind in process.MISUSES}
    return message, process.MISUSED if is_misuse else process.FAILED


class Ending:
    """A context manager that notes SIGTERM or Ctrl-C, so that a job can end in order.

    It interrupts nothing, because a call into the JVM that is cut off would block the cleanup. On
    leaving the context, the job exits with the signal's exit code. A second signal ends the job at
    once, as a crash does.
    """

    def __init__(self, when_asked: Callable[[], None] = lambda: None) -> None:
        """Prepare. when_asked: called in the signal's handler, so it must not wait or lock."""
        self._asked: int | None = None
        self._when_asked = when_asked
        self._handled = process.stopped_by_signals(self._note, end_at_once=True)

    def __enter__(self) -> "Ending":
        self._handled.__enter__()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._handled.__exit__(None, None, None)
        if self._asked is not None and kind is None:
            sys.exit(process.code_of_signal(self._asked))

    def _note(self, number: int) -> None:
        self._asked = number
        self._when_asked()

    @property
    def is_asked(self) -> bool:
        return self._asked is not None


# -- arguments that several jobs share


def add_options(
    parser: argparse.ArgumentParser, flags: Sequence[str], meaning: str, **how: Any
) -> None:
    parser.add_argument(*flags, action=_Options, default={}, metavar=_OPTION, help=meaning, **how)


class _Options(argparse.Action):
    """An action that collects NAME=VALUE. It never shows a value, which may be a password."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        name, equals, value = str(values).partition("=")
        if not equals or not name:
            parser.error(
                f"{option_string} is not accepted (it is not shown, it may be a password). "
                f"Accepted: {_OPTION}."
            )
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def add_parsed(parser: argparse._ActionsContainer, option: Option[Any], form: str) -> None:
    """Add an argument whose value its option parses. form: such as DURATION, for the help."""

    def parse(text: str) -> Any:
        try:
            return option.parse(text)
        except InvalidOption as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    default = "" if option.default is None else " (default: %(default)s)"
    text = f"{option.plain_help}{default}"
    parser.add_argument(option.name, type=parse, default=option.default, metavar=form, help=text)


# -- topics and the connection


def add_topics(parser: argparse.ArgumentParser) -> None:
    add_parsed(parser, TOPICS_OF_JOB, "PATTERN")
    add_options(
        parser,
        ["-o", "--option"],
        "an option of the connection, such as redis.url or keyPrefix; repeatable. Set an address "
        "that holds a password with RMQ_REDIS_URL, which the list of processes does not show",
    )


@contextmanager
def broker_of(given: argparse.Namespace) -> Iterator[Broker]:
    values = CONNECTION.parse(given.option)
    broker = Broker(Server(connection_of(values)), key_prefix=values[KEY_PREFIX])
    try:
        yield broker
    finally:
        broker.close()


# -- rows: their format, their columns, and when they are read


def add_place(parser: argparse.ArgumentParser, flag: str, option_flag: str, what: str) -> None:
    """Add the arguments that choose a format and its options.

    flag, option_flag: such as --to and --target-option. what: the help of flag.
    """
    parser.add_argument(
        flag, dest="format", required=True, metavar="FORMAT", help=f"{what} (required)"
    )
    parser.add_argument("--path", help="the folder, for formats of files and delta")
    parser.add_argument(
        "--url",
        default=os.environ.get("RMQ_JDBC_URL"),
        help="the database, for jdbc (default: RMQ_JDBC_URL)",
    )
    parser.add_argument("--table", help="the table, for jdbc, delta and iceberg")
    add_options(
        parser,
        [option_flag],
        "another option of the format; repeatable. Set the user and the password of a database "
        "with RMQ_JDBC_USER and RMQ_JDBC_PASSWORD",
        dest="place",
    )


def login() -> dict[str, str | None]:
    """Return the user and the password of a database, which the list of processes must not show."""
    return {name: os.environ.get(f"RMQ_JDBC_{name.upper()}") for name in ("user", "password")}


def place_options(given: argparse.Namespace) -> dict[str, str]:
    options: dict[str, str] = dict(given.place)
    needed = _NEEDED.get(given.format)
    for name, argument in (needed or {"path": "path"}).items():
        value = getattr(given, argument)
        if value is not None:
            options[name] = value
        elif needed and name not in options:
            raise InvalidOption(f"The format {given.format} needs --{argument}.")
    if given.format == DELTA and ("path" in options) == bool(given.table):
        raise InvalidOption(
            "The format delta needs either --path, the folder of a table, or --table, the name of "
            "a table in Spark's catalog."
        )
    if given.format == ICEBERG and "." not in options["table"]:
        raise InvalidOption(
            f"--table {options['table']} names no namespace. Accepted: NAMESPACE.TABLE, such as "
            "shop.orders, or CATALOG.NAMESPACE.TABLE with a catalog of Spark."
        )
    if given.format == JDBC:
        from rmq_spark.sql.jdbc import jdbc_options  # needs Spark

        return jdbc_options(options)
    return options


def add_shape(parser: argparse.ArgumentParser, of_what: str) -> None:
    """Add --select and --where, which transform row by row.

    of_what: the rows that they transform, for the help.
    """
    parser.add_argument(
        "--select",
        metavar="SQL",
        help=f"expressions over the columns of the {of_what}, as between SELECT and FROM (default: "
        "all columns)",
    )
    parser.add_argument(
        "--where", metavar="SQL", help=f"keep the {of_what} that meet a condition (default: all)"
    )


def add_streaming(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument(
        "--checkpoint",
        required=required,
        metavar="FOLDER",
        help="the folder for the progress of the query; keep it between runs, and give each job "
        "its own" + (" (required)" if required else ""),
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--once", action="store_true", help="end when everything that is there now is done"
    )
    add_parsed(ends, TRIGGER, "DURATION")


def trigger(given: argparse.Namespace) -> dict[str, Any]:
    if given.once:
        return {"availableNow": True}
    return {"processingTime": f"{given.trigger or 0} milliseconds"}
