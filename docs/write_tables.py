"""Write the tables of options, commands and names in pages from the code that has them.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. `make lint` finds a table
that is stale.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import rmq_spark
import rmq_spark.aio
import rmq_spark.inspect.prometheus
import rmq_spark.inspect.queries
from rmq_spark.cli.app import COMMANDS
from rmq_spark.options import CONNECTION, LISTENER, SINK, SOURCE, TABLE
from rmq_spark.topics.parsing import Option, OptionTable

PAGES = [Path(__file__).with_name(name) for name in ("reference.md", "python.md", "commands.md")]
_REGION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
# By table, the names that users import.
NAMES: Mapping[str, Sequence[str]] = {
    "connecting": ("connect", "Broker"),
    "topics": ("TopicDefinition", "TopicType"),
    "queues": ("Queue", "Message", "SendResult"),
    "receiving": ("Consumer", "Batch", "Delivered"),
    "listening": ("Listener", "Retry", "Bury", "Snooze", "Hold", "listener", "run"),
    "scheduling": ("Schedule", "Scheduler"),
    "outboxes": ("Outbox", "Relay", "Relayed"),
    "looking": ("Figures", "QueueFigures", "QueueKind", "Page", "Entry", "Bounds"),
    "metrics": (
        *("inspect.queries.QueryMetrics", "inspect.prometheus.ListenerCollector"),
        "inspect.prometheus.FunctionCollector",
    ),
    "spark": ("each_message", "EachMessage", "register", "RmqDataSource"),
    "asyncio": (
        *("aio.connect", "aio.AsyncBroker", "aio.AsyncQueue", "aio.AsyncConsumer"),
        *("aio.AsyncBatch", "aio.AsyncListener"),
    ),
}
# Of classes that the rest of the package uses, too: the members that are for users.
MEMBERS: Mapping[str, Sequence[str]] = {
    "Bounds": (),
    **dict.fromkeys(NAMES["metrics"], ()),
    "Page": ("entries",),
    "QueueKind": (),
    "RmqDataSource": (),
    "Schedule": ("next_after",),
    "TopicDefinition": ("slot_of",),
    "TopicType": (),
}
# The classes whose objects users make themselves, or take apart.
MADE = ("Message", "Outbox", "Retry", "Bury", "Snooze", "Hold", "Bounds", "Entry", "SendResult")
MADE += ("Delivered", "Figures", "QueueFigures", "Relayed", *NAMES["metrics"])


def main() -> None:
    """Write the tables of the pages."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


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
    """Return the commands, group by group, each with the first sentence of its help."""
    rows = [
        (f"`rmq {name}`", _first_line(command))
        for by_name in COMMANDS.values()
        for name, command in by_name.items()
    ]
    return _table(("command", ""), rows)


def names(table: str) -> str:
    """Return the names of a table, and where their docstrings go on the site."""
    rows = [(f"`{name}`", _first_line(attrgetter(name)(rmq_spark))) for name in NAMES[table]]
    return f"{_table(('name', ''), rows)}\n<!-- site\n{table}\n-->\n"


def docstrings(table: str) -> str:
    """Return what the site shows of the names of a table, as mkdocstrings reads it."""
    return "".join(f"::: rmq_spark.{name}\n{_options(name)}" for name in NAMES[table])


def _options(name: str) -> str:
    options = []
    if name in MEMBERS:
        members = MEMBERS[name]
        options.append(f"members: [{', '.join(members)}]" if members else "members: false")
        options.append("inherited_members: false")
    if isinstance(attrgetter(name)(rmq_spark), type) and name not in MADE:
        options.append("merge_init_into_class: false")
    return f"    options: {{{', '.join(options)}}}\n" if options else ""


def _first_line(documented: object) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0].removesuffix(".").replace("``", "`")


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
    **{table: partial(names, table) for table in NAMES},
}


if __name__ == "__main__":
    main()
