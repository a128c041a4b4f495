"""docs/reference.md says what the code says: names, defaults, types, bounds."""

import dataclasses
import re
from typing import get_args

import pytest

import rmq_spark
from rmq_spark import errors
from rmq_spark.cli.app import app
from rmq_spark.errors import InvalidOption
from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.listener_options import LISTENER
from rmq_spark.options.sink_options import SINK
from rmq_spark.options.source_options import SOURCE
from rmq_spark.options.table_options import TABLE
from rmq_spark.options.topic_options import GROUPS, MAX_RETRIES, OF_A_NEW_TOPIC, SLOT_AMOUNT
from rmq_spark.spark.options import (
    parse_listener_options,
    parse_sink_options,
    parse_source_options,
)
from rmq_spark.spark.schemas import WHOLE_SOURCE_SCHEMA, WHOLE_TABLE_SCHEMA
from rmq_spark.spark.sink.columns import COLUMNS
from rmq_spark.spark.sink.operations import OPERATIONS
from rmq_spark.spark.table.selection import parse_table_options
from rmq_spark.topics.definition import TopicDefinition, parse_retry_backoff
from rmq_spark.topics.durations import parse_duration_ms
from rmq_spark.topics.topic_types import TopicType

from .code_says import FUNCTIONS, INSIDE, signatures
from .figures_there import figures_there
from .page_tables import Tables, plain
from .pages import ROOT, text_of

PAGE = text_of("docs/reference.md")
TABLES = Tables(PAGE)
by_name, rows, section = TABLES.by_name, TABLES.rows, TABLES.section
TOPIC = {"topic": "Orders"}
DEAD = {**TOPIC, "queue": "dead"}
# By heading: the options, how they are parsed, and what is given beside the one that is tried.
OPTIONS = {
    "The connection": (CONNECTION, parse_sink_options, {}),
    "The source": (SOURCE, parse_source_options, TOPIC),
    "The sink": (SINK, parse_sink_options, {}),
    "The table": (TABLE, parse_table_options, DEAD),
    "each_message": (LISTENER, parse_listener_options, {}),
}
# What an option needs beside it; None takes something away.
BESIDE = {
    "redis.sentinels": {"redis.sentinelMaster": "shop"},
    "redis.sentinelMaster": {"redis.sentinels": "host:26379"},
    "redis.sentinelUsername": {"redis.sentinels": "host:26379", "redis.sentinelMaster": "shop"},
    "redis.sentinelPassword": {"redis.sentinels": "host:26379", "redis.sentinelMaster": "shop"},
    "topics": {"topic": None},
    "topicPattern": {"topic": None},
    "group": {"operation": "cancel"},
    "zookeeper.root": {"zookeeper.hosts": "zk1"},
    "zookeeper.sessionTimeout": {"zookeeper.hosts": "zk1"},
    "zookeeper.ssl": {"zookeeper.hosts": "zk1"},
}


@pytest.mark.parametrize("heading", OPTIONS)
def test_the_options_and_their_defaults(heading):
    table = OPTIONS[heading][0]
    shared = () if table is CONNECTION else CONNECTION.options
    own = [option for option in table.options if option not in shared]
    shown = {name: plain(default) for name, (default, *_) in by_name(heading).items()}
    assert shown == {option.name: option.default or plain(option.otherwise) for option in own}


CELLS = [
    (heading, name, default, accepted)
    for heading in OPTIONS
    for name, (default, accepted, _) in by_name(heading).items()
]


def parsed(heading, name, value):
    _, parse, given = OPTIONS[heading]
    beside = BESIDE.get(name, {})
    if heading != "The sink" and name == "group":
        beside = {}
    options = {**given, **beside} | ({} if value is None else {name: value})
    return parse({key: text for key, text in options.items() if text is not None})


@pytest.mark.parametrize(("heading", "name", "default", "accepted"), CELLS)
def test_what_is_said_to_be_accepted_is(heading, name, default, accepted):
    values = re.findall(r"`([^`]+)`", accepted)
    plainly_told = ("text", "a file that can be read", "1 to 200 of A-Z a-z 0-9 . _ -")
    assert values or accepted.startswith(plainly_told)
    for value in values:
        parsed(heading, name, value)
    for low, high in re.findall(r"`([^`]+)` to `([^`]+)`", accepted):
        for outside_of_it in (beyond(low, -1), beyond(high, 1)):
            with pytest.raises(InvalidOption):
                parsed(heading, name, outside_of_it)
    if OPTIONS[heading][0].find(name).default is not None:
        assert parsed(heading, name, plain(default)) == parsed(heading, name, None)


def beyond(value, step):
    """The next one, of a whole number or of a duration in ms."""
    if value.isdecimal():
        return str(int(value) + step)
    past = parse_duration_ms("value", value) + step
    return f"{past}ms" if past >= 0 else "-1ms"


def test_the_defaults_of_a_new_topic_are_those_of_its_definition():
    defaults = TopicDefinition("Orders", TopicType.PRIORITY)
    cells = {option.name: plain(option.otherwise) for option in OF_A_NEW_TOPIC}
    assert SLOT_AMOUNT.parse(cells["slotAmount"]) == defaults.slot_amount
    assert MAX_RETRIES.parse(cells["maxRetries"]) == defaults.max_retries
    assert parse_retry_backoff(cells["retryBackoff"]) == defaults.retry_backoff_ms
    assert GROUPS.parse(cells["groups"]) == defaults.groups


def test_the_settings_of_a_topic():
    fields = [field for field in dataclasses.fields(TopicDefinition) if field.name != "name"]
    shown = by_name("Settings of a topic")
    assert {name: (plain(cells[1]), cells[2]) for name, cells in shown.items()} == {
        field.name: (
            "" if field.default is dataclasses.MISSING else str(field.default),
            str(field.type).replace(" | ", " or ") if get_args(field.type) else field.type.__name__,
        )
        for field in fields
    }
    named = {plain(cells[0]) for cells in shown.values()} - {""}
    assert named - {option.name for option in SINK.options} == set()


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("Columns of the source", WHOLE_SOURCE_SCHEMA), ("Columns of a table", WHOLE_TABLE_SCHEMA)],
)
def test_the_columns_that_are_read(heading, schema):
    assert [(plain(name), kind) for name, kind, _ in rows(heading)] == [
        (field.name, field.dataType.simpleString().upper()) for field in schema.fields
    ]


def test_the_columns_that_are_sent():
    kinds = {name: told for name, (_, told) in COLUMNS.items()}
    shown = by_name("Columns of the sink")
    assert {name: cells[0] for name, cells in shown.items()} == kinds
    for at, operation in enumerate(("send", "cancel", "requeue", "rollback", "purge"), 1):
        takes = OPERATIONS[operation]
        assert {name for name, cells in shown.items() if cells[at]} == set(takes.columns)
        needed = {name for name, cells in shown.items() if cells[at] == "needed"}
        assert needed == set(takes.required)


def test_the_errors():
    there = {
        name: ", ".join(base.__name__ for base in one.__bases__)
        for name, one in vars(errors).items()
        if isinstance(one, type)
    }
    assert {name: parents for name, (parents, _) in by_name("Errors").items()} == there


def test_the_environment_variables():
    sources = "\n".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "rmq_spark").rglob("*.py")
    )
    read = set(re.findall(r"os\.environ\.get\(\"(\w+)\"", sources))
    read |= set(re.findall(r"^URL_VARIABLE = \"(\w+)\"", sources, re.M))
    assert set(by_name("Environment variables")) == read
    beside = section("Environment variables").partition("In a clone")[2]
    for name in re.findall(r"`([A-Z_]+)`", beside):
        readers = ("Makefile", ".ci/run", "tests/client/test_model.py")
        assert any(name in (ROOT / file).read_text(encoding="utf-8") for file in readers), name


@pytest.mark.parametrize("heading", signatures())
def test_the_signatures(heading):
    (block,) = re.findall(r"```text\n(.*?)```", section(heading), re.S)
    lines = [line for line in block.splitlines() if not line.startswith("    #")]
    shown = re.sub(r"\n +", " ", "\n".join(lines)).splitlines()
    assert sorted(map(squeezed, shown)) == sorted(map(squeezed, signatures()[heading]))


def squeezed(text):
    return re.sub(r"\s", "", text)


def test_every_public_name_is_there():
    names = [name for name in rmq_spark.__all__ if not name.startswith("_")]
    plain_python = PAGE.partition("## Plain Python")[2].partition("## The command rmq")[0]
    documented = plain_python + section("Errors")
    assert [name for name in names if not re.search(rf"\b{name}\b", documented)] == []
    assert all(function.__name__ in names for function in FUNCTIONS)


def test_every_class_that_it_names_is_public():
    shown = " ".join(re.findall(r"```text\n(.*?)```", section("Plain Python"), re.S))
    types = set(re.findall(r"\b[A-Z][a-z]\w+", re.sub(r"#.*", "", shown)))
    from_python = {"Any", "Callable", "DataFrame", "Iterable", "Iterator", "Mapping", "None"}
    from_python |= {"Row", "Self", "Sequence", "SparkSession", "False", "True"}
    assert [name for name in types - from_python if not hasattr(rmq_spark, name)] == []
    assert [name for name in by_name("Errors") if not hasattr(rmq_spark, name)] == []


@pytest.mark.parametrize("owner", INSIDE)
def test_what_is_left_out_is_there(owner):
    assert [name for name in INSIDE[owner] if not hasattr(getattr(rmq_spark, owner), name)] == []


def test_every_command_is_there_and_no_other():
    headings = set(re.findall(r"^### (rmq \S+)$", PAGE, re.M))
    named = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert headings == {f"rmq {name}" for name in named}


def test_the_figures(broker):
    shown = {name: tuple(cells[:2]) for name, cells in by_name("Figures for Prometheus").items()}
    assert shown == {
        family.name: (family.type, ", ".join(labels_of(family))) for family in figures_there(broker)
    }


def labels_of(family):
    """Without that of a histogram's buckets."""
    return [label for label in family.samples[-1].labels if label != "le"]
