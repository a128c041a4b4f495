"""The pages of reference and operations name all of what they are about, and nothing else."""

import re

import pytest
import yaml

from rmq_spark.cli.app import app
from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.table_options import TABLE
from rmq_spark.protocol.reading import ENTRIES_A_PAGE
from rmq_spark.spark.schemas import SOURCE_SCHEMA, TABLE_SCHEMA
from rmq_spark.spark.sink.columns import COLUMNS

from .figures_there import figures_there
from .page_tables import Tables
from .pages import NAMES, ROOT, blocks_of, text_of

REFERENCE = text_of("docs/reference.md")
OPERATIONS = text_of("docs/operations.md")
RULES = [
    (name, block)
    for name in NAMES
    for block in blocks_of(name)
    if block.language == "yaml" and "alert:" in block.text
]


def test_the_reference_names_every_column():
    columns = {*COLUMNS, *SOURCE_SCHEMA.fieldNames()}
    assert [name for name in sorted(columns) if f"`{name}`" not in REFERENCE] == []


def test_the_operations_page_names_every_option_column_and_command_of_it():
    wanted = {option.name for option in TABLE.options if option not in CONNECTION.options}
    wanted |= set(TABLE_SCHEMA.fieldNames())
    assert [name for name in sorted(wanted) if f"`{name}`" not in OPERATIONS] == []
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(commands) >= 18
    assert [name for name in commands if f"`rmq {name}" not in OPERATIONS] == []


def test_the_queues_have_one_name_each():
    """The names of the design are defined once, in docs/protocol.md."""
    found = {
        name: re.findall(r"\b(?:Store|Prepare|Retry|Dead)Queue\b", text_of(name)) for name in NAMES
    }
    assert {name: words for name, words in found.items() if words} == {
        "docs/protocol.md": ["StoreQueue", "PrepareQueue", "DeadQueue"]
    }


def names_in(text):
    found = set(re.findall(r"\brmq_[a-z_]+", text)) - {"rmq_spark", "rmq_"}
    return {re.sub(r"_total$", "", name) for name in found}


def test_the_operations_page_names_every_figure_and_no_other(broker):
    assert names_in(OPERATIONS) == {f.name for f in figures_there(broker)}


@pytest.mark.parametrize(("name", "block"), RULES, ids=lambda value: str(value)[:20])
def test_alert_rules_ask_for_figures_that_are_exported(name, block, broker):
    rules = [rule for group in yaml.safe_load(block.text)["groups"] for rule in group["rules"]]
    assert rules
    there = {family.name for family in figures_there(broker)}
    for rule in rules:
        assert {"alert", "expr", "for"} - rule.keys() <= {"for"}
        assert names_in(rule["expr"]) or rule["expr"].startswith("up{")  # Prometheus' own figure
        assert names_in(rule["expr"]) - there == set()


def test_the_protocol_names_every_script_and_no_other():
    rows = Tables(text_of("docs/protocol.md")).rows("The scripts")
    named = [name for scripts, *_ in rows for name in re.findall(r"`(\w+)`", scripts)]
    assert sorted(named) == sorted(file.stem for file in (ROOT / "lua").glob("*.lua"))


def test_the_protocol_names_the_bounds_of_the_scripts():
    rows = Tables(text_of("docs/protocol.md")).rows("The scripts")
    bounds = {name: cells[-1] for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}
    for name, bound in bounds.items():
        script = (ROOT / "lua" / f"{name}.lua").read_text(encoding="utf-8")
        header = script[: script.index("\nlocal ")]
        told = header + str(ENTRIES_A_PAGE) * (name == "page")  # its callers' own
        assert [n for n in re.findall(r"\d+", bound) if n not in told] == [], name
