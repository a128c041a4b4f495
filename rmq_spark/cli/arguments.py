"""The arguments and options that several commands share."""

from typing import Annotated, Any

import typer

from rmq_spark.options.option import Option
from rmq_spark.options.sink_options import SLOT_BASIS
from rmq_spark.options.table_options import ENDING_TIME, QUEUE, SLOTS, STARTING_TIME
from rmq_spark.options.topic_options import EXPIRES_AT, GROUP, TIME_TO_LIVE, VALUES
from rmq_spark.topics.parsers import ACCEPTED_RELATIVE


def option_help(option: Option[Any], accepted: str = "") -> str:
    """Return the help text of an option: its purpose and the values that it accepts.

    accepted: the values that the command accepts, if it accepts more than the option.
    """
    return f"{option.plain_help}. Accepted: {accepted or option.parser.accepted_plain}."


Topic = Annotated[
    str, typer.Argument(help="The name of a topic: see `rmq topics`.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Group = Annotated[str, typer.Option(help=f"{GROUP.plain_help}.")]
Queues = Annotated[str, typer.Option("--queue", help=option_help(QUEUE))]
Slots = Annotated[str | None, typer.Option(help=option_help(SLOTS))]
From = Annotated[
    str | None, typer.Option("--from", help=option_help(STARTING_TIME, ACCEPTED_RELATIVE))
]
Until = Annotated[str | None, typer.Option("--until", help=f"{ENDING_TIME.plain_help}.")]
Contents = Annotated[
    list[str] | None, typer.Argument(help="Contents of messages.", show_default=False)
]
NAMES_HELP = "Contents of messages; in a keyed topic, their keys."
Names = Annotated[list[str] | None, typer.Argument(help=NAMES_HELP, show_default=False)]
SlotBasis = Annotated[str | None, typer.Option(help=f"{SLOT_BASIS.plain_help}.")]
TimeRange = Annotated[str | None, typer.Option(help=option_help(VALUES["time_range"]))]
Priority = Annotated[int | None, typer.Option(help=option_help(VALUES["priority"]))]
FixedTime = Annotated[
    str | None, typer.Option(help=option_help(VALUES["fixed_time"], ACCEPTED_RELATIVE))
]
Delay = Annotated[str | None, typer.Option(help=option_help(VALUES["delay"]))]
TimeToLive = Annotated[str | None, typer.Option(help=option_help(TIME_TO_LIVE))]
ExpiresAt = Annotated[str | None, typer.Option(help=option_help(EXPIRES_AT, ACCEPTED_RELATIVE))]
