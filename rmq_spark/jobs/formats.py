"""The arguments for the place that a job reads or writes: a format of Spark and its options."""

import argparse
import os

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.databases.database import jdbc_options
from rmq_spark.jobs.job_arguments import add_options
from rmq_spark.jobs.session.connectors import DELTA, KAFKA

# Formats whose path is a folder of files.
FILES = ("parquet", "orc", "json", "csv", "text", "avro")
ICEBERG = "iceberg"
ROCKETMQ = "rocketmq"


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
        option_flag,
        "another option of the format; repeatable. Set the user and the password of a database "
        "with RMQ_JDBC_USER and RMQ_JDBC_PASSWORD",
    )
    parser.set_defaults(option_dest=option_flag.strip("-").replace("-", "_"))


def place_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the chosen format for Spark.

    Raises InvalidOption if an option that the format needs is missing.
    """
    options = dict(getattr(given, given.option_dest))
    names = {"url": given.url, "dbtable": given.table} if is_jdbc(given) else {"path": given.path}
    if given.format == ICEBERG:
        names = {"table": given.table}
    options |= {name: value for name, value in names.items() if value is not None}
    needed = {"url": "--url", "dbtable": "--table"} if is_jdbc(given) else {}
    if given.format in FILES:
        needed = {"path": "--path"}
    if given.format == ICEBERG:
        needed = {"table": "--table"}
    if given.format == DELTA and ("path" in options) == bool(given.table):
        raise InvalidOption(
            "The format delta needs either --path, the folder of a table, or --table, the name of "
            "a table in Spark's catalog."
        )
    for name, argument in needed.items():
        if name not in options:
            raise InvalidOption(f"The format {given.format} needs {argument}.")
    if given.format == ICEBERG and "." not in options["table"]:
        raise InvalidOption(
            f"--table {options['table']} names no namespace. Accepted: NAMESPACE.TABLE, such as "
            "shop.orders."
        )
    return jdbc_options(options) if is_jdbc(given) else options


def is_jdbc(given: argparse.Namespace) -> bool:
    """Check whether the chosen format is jdbc, a table of a database."""
    return bool(given.format == "jdbc")


def has_headers(given: argparse.Namespace) -> bool:
    """Check whether rows of the chosen format have headers, as messages do."""
    return given.format in (KAFKA, ROCKETMQ)
