"""Write the tables of options and commands in reference.md from the code that reads them.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. `make lint` finds a table
that is stale.
"""

import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from typer.main import get_command

from rmq_spark.cli.app import app, connection
from rmq_spark.options import CONNECTION, LISTENER, SINK, SOURCE, TABLE
from rmq_spark.topics.parsing import Option, OptionTable

WIDTH = 117
PAGE = Path(__file__).with_name("reference.md")
_REGION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_TYPES = {"bool": "flag", "int": "whole number", "Path": "path", "str": "text"}


def main() -> None:
    """Write the tables of the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """Return a page with its tables as they should be. Raises KeyError for one nobody knows."""
    return _REGION.sub(lambda found: f"{found[1]}\n{WRITERS[found[2]]()}\n{found[3]}", page)


def option_table(table: OptionTable) -> str:
    """Return the options of a table; those of the connection have a table of their own."""
    shared = () if table is CONNECTION else CONNECTION.options
    rows = [_option_row(option) for option in table.options if option not in shared]
    return _table(("option", "default", "accepted", ""), rows)


def _option_row(option: Option[Any]) -> tuple[str, ...]:
    default = f"`{option.default}`" if option.default else option.otherwise
    see = option.see and f". [{option.see.partition('#')[0]}]({option.see})"
    return f"`{option.name}`", default, option.parser.accepted, option.help + see


def commands() -> str:
    """Return a section for each command: its arguments and options."""
    built: Any = get_command(app)
    sections = [("Before the command", "", _parameters(built, connection))]
    for declared in app.registered_commands:
        callback = typing.cast(Callable[..., Any], declared.callback)
        name = declared.name or callback.__name__
        paragraphs = inspect.cleandoc(callback.__doc__ or "").split("\n\n")
        told = "\n\n".join(textwrap.fill(" ".join(one.split()), WIDTH) for one in paragraphs)
        sections.append((f"rmq {name}", told, _parameters(built.commands[name], callback)))
    return "\n".join(_section(*section) for section in sections)


def _section(heading: str, told: str, rows: list[tuple[str, ...]]) -> str:
    text = f"{told}\n\n" if told else ""
    return f"### {heading}\n\n{text}{_table(('argument or option', 'type', 'default', ''), rows)}"


def _parameters(command: Any, callback: Callable[..., Any]) -> list[tuple[str, ...]]:
    """Names as they are typed; types and defaults as the function declares them."""
    typed = {one.name: one for one in command.params}
    return [
        (
            _name(typed[name]),
            _type(parameter.annotation),
            _default(parameter.default),
            (typed[name].help or "").rstrip("."),
        )
        for name, parameter in inspect.signature(callback).parameters.items()
        if name != "context"
    ]


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])


def _type(annotation: Any) -> str:
    declared, told = typing.get_args(annotation)[:2]
    text = next(_TYPES[name] for name in _TYPES if re.search(rf"\b{name}\b", str(declared)))
    if text == "whole number" and told.min is not None:
        text += f", {told.min} and more" if told.max is None else f", {told.min} to {told.max}"
    return f"{text}, several" if "list" in str(declared) else text


def _default(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    return "" if default in (None, "", False) else f"`{default}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"{_line(cells)}\n" for cells in lines)


def _line(cells: tuple[str, ...]) -> str:
    if set(cells) == {"---"}:
        return "|" + "|".join(cells) + "|"
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


WRITERS: dict[str, Callable[[], str]] = {
    "connection": lambda: option_table(CONNECTION),
    "source": lambda: option_table(SOURCE),
    "sink": lambda: option_table(SINK),
    "table": lambda: option_table(TABLE),
    "listener": lambda: option_table(LISTENER),
    "commands": commands,
}


if __name__ == "__main__":
    main()
