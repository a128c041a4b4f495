"""The command line: what stands before the commands, and which there are."""

from typing import Annotated

import typer

import rmq_spark
from rmq_spark.cli import doctor, live, message_commands, program_commands, topic_commands
from rmq_spark.cli.session import Session, parse_options
from rmq_spark.topics.definition import check_key_prefix

app = typer.Typer(
    name="rmq",
    help="See what is queued in Redis, mend what died, know that it is healthy.",
    epilog="Exit codes: 0 done, 1 failed (or the answer was no), 2 misused, 3 nothing matched, 130 "
    "interrupted.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rmq-spark {rmq_spark.__version__}")
        raise typer.Exit


@app.callback()
def _connection(
    context: typer.Context,
    redis_url: Annotated[
        str | None,
        typer.Option(
            help="Where Redis is; else RMQ_REDIS_URL, else the local server.", metavar="URL"
        ),
    ] = None,
    redis_cluster: Annotated[bool, typer.Option(help="It is a Redis Cluster.")] = False,
    key_prefix: Annotated[str, typer.Option(help="What stands before every key.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Another option of the connection: redis.name=value."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    options = parse_options(option or [])
    if redis_url is not None:
        options["redis.url"] = redis_url
    if redis_cluster:
        options["redis.cluster"] = "true"
    context.obj = Session(options, check_key_prefix(key_prefix))


for module in (topic_commands, message_commands, live, doctor, program_commands):
    module.add_to(app)
