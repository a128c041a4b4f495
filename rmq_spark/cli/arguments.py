"""The arguments that several commands have."""

from typing import Annotated

import typer

from rmq_spark.protocol.pages import QueueKind

Topic = Annotated[str, typer.Argument(help="A topic.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Group = Annotated[str, typer.Option(help="A consumer group.")]
Queues = Annotated[str, typer.Option("--queue", help=f"{', '.join(QueueKind)}, or all.")]
Slots = Annotated[str | None, typer.Option(help="Numbers and ranges: 0,8-15.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="Due, claimed or dead from then on: ms or ISO 8601 with a zone."),
]
Until = Annotated[str | None, typer.Option("--until", help="And before then.")]
Contents = Annotated[list[str] | None, typer.Argument(help="Contents.", show_default=False)]
SlotBasis = Annotated[str | None, typer.Option(help="What the slot follows from, if not content.")]
TimeRange = Annotated[str | None, typer.Option(help="RangeMerge: a duration such as 30s.")]
Priority = Annotated[int | None, typer.Option(help="Priority: 17 and more; higher goes first.")]
FixedTime = Annotated[
    str | None, typer.Option(help="FixedTime: ms since 1970 or ISO 8601 with a zone.")
]
