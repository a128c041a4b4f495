"""What jobs read from and write to: a format of Spark and its options, from the command line."""

import argparse
import os

from rmq_spark.jobs.database import jdbc_options
from rmq_spark.jobs.job_arguments import add_options
from rmq_spark.jobs.program import JobMisused

# Formats that are folders of files.
FILES = ("parquet", "orc", "json", "csv", "text", "avro")


def add_place(parser: argparse.ArgumentParser, flag: str, option_flag: str, what: str) -> None:
    """The arguments that name it. flag, option_flag: such as --to and --target-option."""
    parser.add_argument(flag, dest="format", required=True, metavar="FORMAT", help=what)
    parser.add_argument("--path", help="of files: the folder")
    parser.add_argument(
        "--url", default=os.environ.get("RMQ_JDBC_URL"), help="of jdbc (default: RMQ_JDBC_URL)"
    )
    parser.add_argument("--table", help="of jdbc: the table")
    add_options(
        parser,
        option_flag,
        "another option of the format; repeatable. user and password of jdbc come from "
        "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, where these are set",
    )
    parser.set_defaults(option_dest=option_flag.strip("-").replace("-", "_"))


def place_options(given: argparse.Namespace) -> dict[str, str]:
    """The options for Spark. Raises JobMisused where the format lacks one."""
    options = dict(getattr(given, given.option_dest))
    names = {"url": given.url, "dbtable": given.table} if is_jdbc(given) else {"path": given.path}
    options |= {name: value for name, value in names.items() if value is not None}
    needed = {"url": "--url", "dbtable": "--table"} if is_jdbc(given) else {}
    if given.format in FILES:
        needed = {"path": "--path"}
    for name, argument in needed.items():
        if name not in options:
            raise JobMisused(f"The format {given.format} needs {argument}.")
    return jdbc_options(options) if is_jdbc(given) else options


def is_jdbc(given: argparse.Namespace) -> bool:
    """Whether it is a table of a database."""
    return bool(given.format == "jdbc")
