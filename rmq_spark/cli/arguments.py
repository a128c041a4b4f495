"""The arguments that several commands have."""

from typing import Annotated

import typer

from rmq_spark.protocol.pages import QueueKind

MOMENTS = "30s (from now), -1h (ago), now, ISO 8601 with a zone, or ms since 1970"

Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Group = Annotated[str, typer.Option(help="The consumer group.")]
Queues = Annotated[
    str, typer.Option("--queue", help=f"One or more of {', '.join(QueueKind)}, or all.")
]
Slots = Annotated[str | None, typer.Option(help="Only these slots, such as 0,8-15.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from", help=f"Only messages due, claimed or dead from this moment on: {MOMENTS}."
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", help="Only messages due, claimed or dead before it.")
]
Contents = Annotated[
    list[str] | None, typer.Argument(help="Contents of messages.", show_default=False)
]
SlotBasis = Annotated[
    str | None, typer.Option(help="The text that decides the slot, instead of the content.")
]
TimeRange = Annotated[
    str | None,
    typer.Option(help="For a RangeMerge topic: the wait before the delivery, such as 30s."),
]
Priority = Annotated[
    int | None, typer.Option(help="For a Priority topic: 17 or more; higher goes first.")
]
FixedTime = Annotated[
    str | None, typer.Option(help=f"For a FixedTime topic: when it is due: {MOMENTS}.")
]
