"""Arguments that several jobs share, and functions that apply their values."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq_spark.errors import InvalidOption
from rmq_spark.options.job_options import TRIGGER
from rmq_spark.options.option import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPTION = "NAME=VALUE"


def add_spark_settings(parser: argparse.ArgumentParser) -> None:
    """Add --conf, the settings of the Spark session, to a parser."""
    add_options(parser, "--conf", "a setting of Spark, such as spark.jars=driver.jar; repeatable")


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add a repeatable argument NAME=VALUE. The last of ``names`` is its help."""
    *flags, meaning = names
    parser.add_argument(*flags, action=_Options, default={}, metavar=_OPTION, help=meaning)


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
    """Add --checkpoint, --once and --trigger to a parser.

    required: whether the job cannot run without --checkpoint.
    """
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
    add_duration(ends, TRIGGER)


def trigger(given: argparse.Namespace) -> dict[str, Any]:
    """Return --once and --trigger as the arguments of DataStreamWriter.trigger."""
    if given.once:
        return {"availableNow": True}
    return {"processingTime": f"{given.trigger or 0} milliseconds"}


def shaped(
    rows: "DataFrame", view: str, select: str | None, where: str | None, number: str | None = None
) -> "DataFrame":
    """Apply --where and --select to rows, which SQL knows as ``view``.

    number: a column to keep, whatever --select chooses.
    """
    rows.createOrReplaceTempView(view)
    wanted = select or "*"
    if number is None:
        return rows.sparkSession.sql(f"SELECT {wanted} FROM {view} WHERE {where or True}")
    # Renamed in between: --select may choose all columns, and would then contain it twice.
    kept = f"{number} AS {number}_kept, {wanted}"
    found = rows.sparkSession.sql(f"SELECT {kept} FROM {view} WHERE {where or True}")
    return found.drop(number).withColumnRenamed(f"{number}_kept", number)


def add_duration(parser: argparse._ActionsContainer, option: Option[int]) -> None:
    """Add an argument that is a duration, as its option parses it."""
    _add_parsed(parser, option, "DURATION")


def add_number(parser: argparse._ActionsContainer, option: Option[int]) -> None:
    """Add an argument that is a whole number, as its option parses it."""
    _add_parsed(parser, option, "NUMBER")


def _add_parsed(parser: argparse._ActionsContainer, option: Option[int], form: str) -> None:
    def parse(text: str) -> int:
        try:
            return option.parse(text)
        except InvalidOption as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    default = "" if option.default is None else " (default: %(default)s)"
    text = f"{option.plain_help}{default}"
    parser.add_argument(option.name, type=parse, default=option.default, metavar=form, help=text)


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
