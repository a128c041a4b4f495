"""Rules of the pages of reference: they say what the code says."""

import dataclasses
import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import rmq_spark
from rmq_spark import errors
from rmq_spark.errors import InvalidOption
from rmq_spark.options import CONNECTION, LISTENER, OF_SETTINGS, SINK, SLOT_AMOUNT, SOURCE, TABLE
from rmq_spark.outbox.rows import EXPECTED
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.spark.options import parse_listener_options, parse_sink_options, parse_source_options
from rmq_spark.spark.schemas import WHOLE_SOURCE_SCHEMA, WHOLE_TABLE_SCHEMA
from rmq_spark.spark.sink.columns import COLUMNS
from rmq_spark.spark.sink.operations import OPERATIONS
from rmq_spark.spark.tables import parse_table_options
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsing import parse_duration_ms
from rmq_spark.topics.settings import parse_retry_backoff
from rmq_spark.topics.types import TopicType

from .. import ROOT
from .page import Page, plain

_WRITER = runpy.run_path(str(ROOT / "docs/write_tables.py"))
with_tables: Callable[[str], str] = _WRITER["with_tables"]
WRITTEN = [page.name for page in _WRITER["PAGES"]]
TOPIC = {"topic": "Orders"}
# By heading: the options, how they are parsed, and what is given beside the one that is tried.
OPTIONS: dict[str, tuple[Any, Callable[..., Any], dict[str, str]]] = {
    "The connection": (CONNECTION, parse_sink_options, {}),
    "The source": (SOURCE, parse_source_options, TOPIC),
    "The sink": (SINK, parse_sink_options, {}),
    "The table": (TABLE, parse_table_options, {**TOPIC, "queue": "dead"}),
    "each_message": (LISTENER, parse_listener_options, {}),
}
# What an option needs beside it, by its beginning; None takes something away.
BESIDE: dict[str, dict[str, str | None]] = {
    "redis.sentinel": {"redis.sentinels": "host:26379", "redis.sentinelMaster": "shop"},
    "topics": {"topic": None},
    "topicPattern": {"topic": None},
    "zookeeper.": {"zookeeper.hosts": "zk1"},
}
IN_WORDS = (
    "text",
    "a path that pyarrow can read",
    "a file that can be read",
    "1 to 200 of . _ - A-Z a-z 0-9, not all dots",
)


def place(page: Page, heading: str, name: str = "") -> int:
    """The position of a name's row below a heading; of the heading, if it has none."""
    start = page.text.index(f"# {heading}\n")
    end = page.text.find("\n#", start)
    row = re.compile(rf"^\|.*`{re.escape(name)}`", re.MULTILINE).search(page.text, start, end)
    return row.start() if name and row else start


def compare(
    page: Page, heading: str, shown: Mapping[str, object], there: Mapping[str, object]
) -> Iterator[str]:
    """What a table says of names, and what the code says of them."""
    for name in sorted({*shown, *there}):
        at = place(page, heading, name)
        if name not in shown:
            yield page.at(at, f"'{heading}' lacks {name}. Write: {name} {there[name]}".rstrip())
        elif name not in there:
            yield page.at(at, f"the code has no {name}. Remove it from '{heading}'")
        elif shown[name] != there[name]:
            yield page.at(at, f"{name}: {shown[name]} is wrong. Write {there[name]}")


def stale_tables(page: Page) -> Iterator[str]:
    try:
        written = with_tables(page.text)
    except KeyError as unknown:
        yield page.at(f"generated: {unknown.args[0]}", f"nothing writes the table {unknown}")
        return
    for number, (here, there) in enumerate(
        zip(page.text.splitlines(), [*written.splitlines(), ""], strict=False), 1
    ):
        if here != there:
            yield f"{page.name}:{number}: a written table is stale. Run: make docs"
            return


def wrongly_accepted(page: Page) -> Iterator[str]:
    """Every accepted value that is named is accepted, those beyond its bounds are not."""
    for heading, (table, _, _) in OPTIONS.items():
        for name, (default, accepted, _) in page.by_name(heading).items():
            at = place(page, heading, name)
            values = re.findall(r"`([^`]+)`", accepted)
            if not (values or accepted.startswith(IN_WORDS)):
                yield page.at(at, f"{name}: name a value that is accepted, or one of {IN_WORDS}")
            beyond = [
                past
                for low, high in re.findall(r"`([^`]+)` to `([^`]+)`", accepted)
                for past in (next_to(low, -1), next_to(high, 1))
            ]
            for value in [*values, *beyond]:
                refusal = refusal_of(heading, name, value)
                if refusal and value in values:
                    yield page.at(at, f"{name}: {value} is refused: {refusal}. Name another")
                elif not refusal and value in beyond:
                    yield page.at(at, f"{name}: {value} is accepted, too. Correct the bounds")
            if table.find(name).default is not None and (
                refusal_of(heading, name, plain(default))
                or parsed(heading, name, plain(default)) != parsed(heading, name, None)
            ):
                yield page.at(at, f"{name}: {default} is not the default")


def parsed(heading: str, name: str, value: str | None) -> object:
    _, parse, given = OPTIONS[heading]
    options: dict[str, str | None] = {**given}
    if (heading, name) == ("The sink", "group"):
        options["operation"] = "cancel"
    for beginning, beside in BESIDE.items():
        if name.startswith(beginning):
            options |= beside
    options[name] = value
    return parse({key: text for key, text in options.items() if text is not None})


def refusal_of(heading: str, name: str, value: str) -> str:
    try:
        parsed(heading, name, value)
    except InvalidOption as refused:
        return str(refused)
    return ""


def next_to(value: str, step: int) -> str:
    """The next one, of a whole number or of a duration in ms."""
    if value.isdecimal():
        return str(int(value) + step)
    past = parse_duration_ms("value", value) + step
    return f"{past}ms" if past >= 0 else "-1ms"


def defaults_of_topics(page: Page) -> Iterator[str]:
    """What a sink's options default to is what a definition does."""
    new = TopicDefinition("Orders", TopicType.PRIORITY)
    known: dict[str, tuple[Callable[[str], object], object]] = {
        "slotAmount": (SLOT_AMOUNT.parse, new.slot_amount),
        "maxRetries": (OF_SETTINGS["max_retries"].parse, new.max_retries),
        "retryBackoff": (parse_retry_backoff, new.retry_backoff_ms),
        "groups": (OF_SETTINGS["groups"].parse, new.groups),
    }
    cells = page.by_name("The sink")
    shown = {name: parse(plain(cells[name][0])) for name, (parse, _) in known.items()}
    yield from compare(page, "The sink", shown, {name: value for name, (_, value) in known.items()})


def settings_of_topics(page: Page) -> Iterator[str]:
    rows = page.by_name("Settings of a topic")
    shown = {name: (plain(cells[1]), cells[2]) for name, cells in rows.items()}
    there = {
        field.name: (
            "" if field.default is dataclasses.MISSING else str(field.default),
            str(field.type).replace(" | ", " or ") if get_args(field.type) else field.type.__name__,
        )
        for field in dataclasses.fields(TopicDefinition)
        if field.name != "name"
    }
    yield from compare(page, "Settings of a topic", shown, there)
    options = {option.name for option in SINK.options}
    for name in {plain(cells[0]) for cells in rows.values()} - options - {""}:
        yield page.at(place(page, "Settings of a topic", name), f"the sink has no option {name}")


def columns(page: Page) -> Iterator[str]:
    for heading, schema in (
        ("Columns of the source", WHOLE_SOURCE_SCHEMA),
        ("Columns of a table", WHOLE_TABLE_SCHEMA),
    ):
        shown = {name: cells[0] for name, cells in page.by_name(heading).items()}
        there = {field.name: field.dataType.simpleString().upper() for field in schema.fields}
        yield from compare(page, heading, shown, there)
        if [*shown] != [*there] and {*shown} == {*there}:
            yield page.at(place(page, heading), f"the order is not {', '.join(there)}")
    operations = ("send", "cancel", "requeue", "rollback", "purge")
    assert {*operations} == {*OPERATIONS}
    taken = {
        name: (
            kind,
            *(
                "needed" if name in each.required else "taken" if name in each.columns else ""
                for each in map(OPERATIONS.__getitem__, operations)
            ),
        )
        for name, (_, kind) in COLUMNS.items()
    }
    told = {}
    for name, (kind, needed, may, *_) in page.by_name("Columns of the sink").items():
        by, _, condition = needed.replace("all", ", ".join(operations)).partition(", if ")
        by, _, unless = by.partition(", unless ")
        always = [] if condition or unless else by.split(", ")
        ever = [*by.split(", "), *may.replace("all", ", ".join(operations)).split(", ")]
        told[name] = (
            kind,
            *(
                "needed" if each in always else "taken" if each in ever else ""
                for each in operations
            ),
        )
    yield from compare(page, "Columns of the sink", told, taken)


def classes_of_errors(page: Page) -> Iterator[str]:
    there = {
        name: ", ".join(base.__name__ for base in one.__bases__)
        for name, one in vars(errors).items()
        if isinstance(one, type)
    }
    shown = {name: parents for name, (parents, _) in page.by_name("Errors").items()}
    yield from compare(page, "Errors", shown, there)
    for name in shown:
        if not hasattr(rmq_spark, name):
            yield page.at(place(page, "Errors", name), f"{name} is not public. Add it to __all__")


def environment_variables(page: Page) -> Iterator[str]:
    heading = "Environment variables"
    files = (ROOT / "rmq_spark").rglob("*.py")
    sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
    pattern = r"(?:os\.environ\.get\(|^URL_VARIABLE = |envvar=|Key\": (?=\"RMQ_))\"(\w+)\""
    read = set(re.findall(pattern, sources, re.MULTILINE))
    begun = tuple(re.findall(r"os\.environ\.get\(f\"(\w+)\{", sources))
    shown = page.by_name(heading)
    read |= {name for name in shown if name.startswith(begun)}
    yield from compare(page, heading, dict.fromkeys(shown, ""), dict.fromkeys(read, ""))


def public_names(page: Page) -> Iterator[str]:
    """All of __all__ is documented, here or in the table of errors."""
    for name in rmq_spark.__all__:
        if not (name.startswith("_") or hasattr(errors, name) or f"| `{name}` |" in page.text):
            yield f"{page.name}: lacks {name}, which is public. Name it in docs/write_tables.py"


def scripts_of_the_protocol(page: Page) -> Iterator[str]:
    """The table names every script; the header of each has its bound."""
    heading = "The scripts"
    named = {name for scripts, *_ in page.rows(heading) for name in re.findall(r"`(\w+)`", scripts)}
    there = {file.stem for file in (ROOT / "lua").glob("*.lua")}
    yield from compare(page, heading, dict.fromkeys(named, ""), dict.fromkeys(there, ""))


def queues_in_the_figure(page: Page) -> Iterator[str]:
    figure = page.blocks_of("mermaid")[0]
    for name in {kind.value for kind in QueueKind} - set(re.findall(r"\b[a-z]+\b", figure.text)):
        yield f"{page.name}:{figure.line}: the figure has no queue {name}. Draw it"


def marks_in_the_figure(page: Page) -> Iterator[str]:
    """The figure of the outbox has the states that a mark sets, each after those it may follow."""
    figure = page.blocks_of("mermaid")[0]
    marks = re.findall(r"(\w+) --> (\w+): mark", figure.text)
    for state in {*EXPECTED} - {after for _, after in marks}:
        yield f"{page.name}:{figure.line}: no mark leads to {state}. Draw it"
    for before, after in marks:
        if before not in EXPECTED.get(after, ()):
            yield f"{page.name}:{figure.line}: no mark leads from {before} to {after}. Remove it"
