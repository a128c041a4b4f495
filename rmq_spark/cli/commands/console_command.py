"""The command rmq console: serves pages for the browser."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from rmq_spark.cli.output import print_line, print_remark
from rmq_spark.cli.session import ended_by_signals, session_of
from rmq_spark.errors import InvalidOption, ServerUnavailable
from rmq_spark.ownership.ensemble import parse_ensemble

DEFAULT_CONSOLE_PORT = 9310


def console(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
    ] = DEFAULT_CONSOLE_PORT,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. An address that others can reach needs --tokens."
        ),
    ] = "127.0.0.1",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let users change queues, not only view them.")
    ] = False,
    hide_contents: Annotated[
        bool,
        typer.Option("--hide-contents", help="Show no content, key, header or reason of messages."),
    ] = False,
    tokens: Annotated[
        Path | None,
        typer.Option(help="A file with the users: on each line a name, a blank and a token."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Also answer under this host name; repeatable.", metavar="NAME"),
    ] = None,
) -> None:
    """Show topics, messages and consumers in the browser.

    The pages only show, unless you add --allow-changes. Set zookeeper.hosts with --option before
    the command to see who owns the slots of exclusive topics.
    """
    try:
        from rmq_spark.console.console import Console
        from rmq_spark.console.console_settings import ConsoleSettings, read_tokens
        from rmq_spark.console.serving import serve
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"rmq console needs {error.name}: pip install 'rmq-spark[console]'"
        ) from None
    settings = ConsoleSettings(
        host=host,
        port=port,
        allow_changes=allow_changes,
        hide_contents=hide_contents,
        tokens={} if tokens is None else read_tokens(tokens),
        names=tuple(allow_host or ()),
    )
    session = session_of(context)
    made = Console(settings, session.broker, parse_ensemble(session.zookeeper))
    try:
        made.connection.get()
    except ServerUnavailable as error:  # the pages say so, and show more when it is back
        print_remark(str(error))
    _log_changes()
    with ended_by_signals() as ended, serve(made) as address:
        print_line(address)
        sys.stdout.flush()
        ended.wait()


def _log_changes() -> None:
    """Log to stderr who has changed what."""
    log = logging.getLogger("rmq_spark.console")
    log.setLevel(logging.INFO)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False
