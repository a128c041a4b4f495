"""The command line: the options before the command, and the commands by group."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import rmq_spark
from rmq_spark.cli import doctor, listen, programs, read, repair, schedules, send, topics
from rmq_spark.cli.arguments import option_help
from rmq_spark.cli.session import Session, parse_options
from rmq_spark.options import CLUSTER, KEY_PREFIX, URL

COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Topics": {
        "create": topics.create,
        "topics": topics.list_topics,
        "show": topics.show,
        "alter": topics.alter,
        "pause": topics.pause,
        "resume": topics.resume,
        "hold": topics.hold,
        "delete": topics.delete,
        "lower-epochs": topics.lower_epochs,
    },
    "Messages": {
        "send": send.send,
        "consume": read.consume,
        "listen": listen.listen,
        "peek": read.peek,
        "find": read.find,
        "dead": read.dead,
        "due": read.due,
        "cancel": repair.cancel,
        "move": repair.move,
        "requeue": repair.requeue,
        "purge": repair.purge,
        "expire": repair.expire,
    },
    "Schedules": {
        "schedule": schedules.schedule,
        "schedules": schedules.list_schedules,
        "unschedule": schedules.unschedule,
        "scheduler": schedules.scheduler,
    },
    "Operation": {
        "console": programs.console,
        "top": topics.top,
        "doctor": doctor.doctor,
        "size": programs.size,
        "metrics": programs.metrics,
        "local": programs.local,
        "job": programs.job,
    },
}

# A job parses its own arguments and prints its own help.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "job": {
        "add_help_option": False,
        "context_settings": {"ignore_unknown_options": True, "allow_interspersed_args": False},
    }
}


class GroupedCommands(TyperGroup):
    """The command ``rmq``, whose help lists its commands by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        limit = formatter.width - 6 - width
        for title, names in COMMANDS.items():
            with formatter.section(title):
                rows = [
                    (name.ljust(width), self.commands[name].get_short_help_str(limit))
                    for name in names
                ]
                formatter.write_dl(rows)


class ExplainedCommand(TyperCommand):
    """A command that says what an argument or option is that is missing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if not error.message:  # as of one that is missing
                error.message = getattr(error.param, "help", None) or ""
            raise


app = typer.Typer(
    name="rmq",
    cls=GroupedCommands,
    help="Manage topics and messages that are queued in Redis.",
    epilog="Exit codes: 0 done; 1 failed, or you answered no; 2 wrong option, topic or "
    "message; 3 nothing matched, or nothing is due; 130 interrupted; 143 ended by SIGTERM.",
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
def connection(
    context: typer.Context,
    redis_url: Annotated[
        str | None,
        typer.Option(
            help=f"{URL.plain_help}. Without it: {URL.otherwise.replace('`', '')}.", metavar="URL"
        ),
    ] = None,
    redis_cluster: Annotated[bool, typer.Option(help=f"{CLUSTER.plain_help}.")] = False,
    key_prefix: Annotated[
        str, typer.Option(help=option_help(KEY_PREFIX), envvar="RMQ_KEY_PREFIX")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="Another option of the connection: redis.name=value or zookeeper.name=value.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    options = parse_options(option or [])
    if redis_url is not None:
        options[URL.name] = redis_url
    if redis_cluster:
        options[CLUSTER.name] = "true"
    if key_prefix:
        options[KEY_PREFIX.name] = KEY_PREFIX.called("--key-prefix").parse(key_prefix)
    typed = {URL.name: "--redis-url"} if redis_url is not None else {}
    context.obj = Session(options, typed)


for commands in COMMANDS.values():
    for name, command in commands.items():
        app.command(name, cls=ExplainedCommand, **SETTINGS.get(name, {}))(command)
