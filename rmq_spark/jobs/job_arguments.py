"""Arguments that several jobs have, and how their values are read."""

import argparse
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from rmq_spark.errors import InvalidOption
from rmq_spark.options.job_options import TRIGGER
from rmq_spark.options.option import Option

_OPTION = "NAME=VALUE"


def new_parser(program: str, description: str) -> argparse.ArgumentParser:
    """A parser that shows a description with its lines as they are."""
    return argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def new_spark_parser(program: str, description: str) -> argparse.ArgumentParser:
    """The same with --conf."""
    parser = new_parser(program, description)
    add_options(parser, "--conf", "a setting of Spark, such as spark.jars=driver.jar; repeatable")
    return parser


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """A repeatable argument of names with values; the last of ``names`` is its help."""
    *flags, meaning = names
    parser.add_argument(*flags, action=_Options, default={}, metavar=_OPTION, help=meaning)


def add_shape(parser: argparse.ArgumentParser, of_what: str) -> None:
    """--select and --where, the transformation that is worked out row by row."""
    parser.add_argument(
        "--select",
        metavar="SQL",
        help=f"what stands between SELECT and FROM: expressions over the columns of {of_what}",
    )
    parser.add_argument("--where", metavar="SQL", help=f"a condition: the others of {of_what} go")


def add_streaming(parser: argparse.ArgumentParser, required: bool) -> None:
    """--checkpoint, --once and --trigger."""
    parser.add_argument(
        "--checkpoint",
        required=required,
        metavar="FOLDER",
        help="where the query keeps how far it is: kept between runs, of this job alone",
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--once", action="store_true", help="end when all that is there now is done (AvailableNow)"
    )
    add_duration(ends, TRIGGER)


def trigger(given: argparse.Namespace) -> dict[str, Any]:
    """--once and --trigger, as the arguments of DataStreamWriter.trigger."""
    if given.once:
        return {"availableNow": True}
    return {"processingTime": f"{given.trigger or 0} milliseconds"}


def shaped(
    rows: DataFrame, view: str, select: str | None, where: str | None, number: str | None = None
) -> DataFrame:
    """Rows after --where and --select, in which they are called ``view``.

    number: a column that stays, whatever is selected.
    """
    rows.createOrReplaceTempView(view)
    wanted = select or "*"
    if number is None:
        return rows.sparkSession.sql(f"SELECT {wanted} FROM {view} WHERE {where or True}")
    # Under another name meanwhile: what is selected may be all columns.
    kept = f"{number} AS {number}_kept, {wanted}"
    found = rows.sparkSession.sql(f"SELECT {kept} FROM {view} WHERE {where or True}")
    return found.drop(number).withColumnRenamed(f"{number}_kept", number)


def add_duration(parser: argparse._ActionsContainer, option: Option[int]) -> None:
    """An argument that is a duration."""
    _add_parsed(parser, option, "DURATION")


def add_number(parser: argparse._ActionsContainer, option: Option[int]) -> None:
    """An argument that is a whole number."""
    _add_parsed(parser, option, "NUMBER")


def _add_parsed(parser: argparse._ActionsContainer, option: Option[int], form: str) -> None:
    def parse(text: str) -> int:
        try:
            return option.parse(text)
        except InvalidOption as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    default = "" if option.default is None else " (default: %(default)s)"
    told = f"{option.plain_help}{default}"
    parser.add_argument(option.name, type=parse, default=option.default, metavar=form, help=told)


class _Options(argparse.Action):
    """Gathers NAME=VALUE. A value is never shown: it may be a password."""

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
                f"{option_string} is not accepted (its text is not shown: it may be a password). "
                f"Accepted: {_OPTION}."
            )
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})
