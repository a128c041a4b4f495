"""The settings that rmq create and rmq alter share."""

from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import option_help
from rmq_spark.options.topic_options import (
    DEAD_RETENTION,
    MAX_RETRIES,
    ON_EXPIRY,
    RETRY_BACKOFF,
)

Retries = Annotated[int | None, typer.Option(help=option_help(MAX_RETRIES))]
Backoff = Annotated[str | None, typer.Option(help=option_help(RETRY_BACKOFF))]
OnExpiry = Annotated[
    str | None,
    typer.Option(
        help="What happens to messages that expire: drop them, or move them to the dead queue. "
        f"Accepted: {ON_EXPIRY.parser.accepted_plain}."
    ),
]
DeadRetention = Annotated[
    str | None,
    typer.Option(
        help="How long dead messages are kept; rmq expire deletes older ones. "
        f"Accepted: {DEAD_RETENTION.parser.accepted_plain}."
    ),
]


def settings_of(
    retries: int | None, backoff: str | None, on_expiry: str | None, dead_retention: str | None
) -> dict[str, Any]:
    """Return the settings that are given, as Broker takes them. Raises InvalidOption."""
    settings: dict[str, Any] = {}
    if retries is not None:
        settings["max_retries"] = MAX_RETRIES.called("--retries").parse(str(retries))
    if backoff is not None:
        settings["retry_backoff"] = RETRY_BACKOFF.called("--backoff").parse(backoff)
    if on_expiry is not None:
        settings["on_expiry"] = ON_EXPIRY.called("--on-expiry").parse(on_expiry)
    if dead_retention is not None:
        of = DEAD_RETENTION.called("--dead-retention")
        settings["dead_retention"] = of.parse(dead_retention)
    return settings
