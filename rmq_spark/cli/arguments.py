"""The arguments that several commands have."""

from typing import Annotated, Any

import typer

from rmq_spark.options.option import Option
from rmq_spark.options.sink_options import SLOT_BASIS
from rmq_spark.options.table_options import ENDING_TIME, QUEUE, SLOTS, STARTING_TIME
from rmq_spark.options.topic_options import GROUP, VALUES
from rmq_spark.topics.parsers import ACCEPTED_FROM_NOW


def told(option: Option[Any], accepted: str = "") -> str:
    """Say in a help text what an option is for and what it accepts.

    accepted: what a command accepts, if that is more.
    """
    return f"{option.plain_help}. Accepted: {accepted or option.parser.plainly_accepted}."


Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Group = Annotated[str, typer.Option(help=f"{GROUP.plain_help}.")]
Queues = Annotated[str, typer.Option("--queue", help=told(QUEUE))]
Slots = Annotated[str | None, typer.Option(help=told(SLOTS))]
From = Annotated[str | None, typer.Option("--from", help=told(STARTING_TIME, ACCEPTED_FROM_NOW))]
Until = Annotated[str | None, typer.Option("--until", help=f"{ENDING_TIME.plain_help}.")]
Contents = Annotated[
    list[str] | None, typer.Argument(help="Contents of messages.", show_default=False)
]
SlotBasis = Annotated[str | None, typer.Option(help=f"{SLOT_BASIS.plain_help}.")]
TimeRange = Annotated[str | None, typer.Option(help=told(VALUES["time_range"]))]
Priority = Annotated[int | None, typer.Option(help=told(VALUES["priority"]))]
FixedTime = Annotated[str | None, typer.Option(help=told(VALUES["fixed_time"], ACCEPTED_FROM_NOW))]
