"""The command rmq job: runs a job of the package, which parses its own arguments."""

from typing import Annotated

import typer

from rmq_spark.cli.session import session_of
from rmq_spark.jobs.commands import main


def job(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME [ARGUMENTS]...",
            help="The name of a job, and its own arguments; --help shows them.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a job, such as export or relay_outbox.

    A job is a program for a schedule. Connection options before the command are passed to the job.
    rmq job --help lists the jobs. relay_outbox and expire need no Spark.
    """
    connection = [
        part
        for option, value in session_of(context).options.items()
        for part in ("--option", f"{option}={value}")
    ]
    # The job's own options come last, so that they override those of the connection.
    name, own = (arguments or [])[:1], (arguments or [])[1:]
    is_named = name and not name[0].startswith("-")
    raise typer.Exit(main([*name, *(connection if is_named else []), *own], "rmq job"))
