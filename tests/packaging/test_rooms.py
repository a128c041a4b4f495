"""The rooms of the package: what stands where, and who may import whom."""

import ast
from collections import Counter
from itertools import pairwise

import pytest

from .. import ROOT

PACKAGE = ROOT / "rmq_spark"
# In the order of CONTRIBUTING.md: a room imports from itself and from rooms earlier in the list.
ROOMS = (
    "errors",
    "exit_codes",
    "repeated_signals",
    "topics",
    "protocol",
    "options",
    "transport",
    "ownership",
    "client",
    "aio",
    "outbox",
    "dev_servers",
    "metrics",
    "views",
    "spark.source",
    "spark.sink",
    "spark.table",
    "spark.listener",
    "spark",
    "jobs",
    "console",
    "cli",
)
# What the rooms of Spark share lies beside them: it imports none of them.
SHARED_BY_SPARK = "spark.shared"
ABOVE_THE_ROOMS_OF_SPARK = {"datasource"}
MODULES_A_FOLDER = 16
LINES_A_MODULE = 400
METHODS_A_CLASS = 16


def modules():
    """Every module of the package, as a dotted name without its first part, and its file."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), file


def room_of(module):
    """The room that a module stands in."""
    folder, _, name = module.rpartition(".")
    if folder == "spark" and module not in ROOMS:
        return "spark" if name in ABOVE_THE_ROOMS_OF_SPARK else SHARED_BY_SPARK
    known = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    return max(known, key=len, default="")


def rank(room):
    """The position of a room in the list."""
    if room == SHARED_BY_SPARK:
        return ROOMS.index("spark.source") - 0.5
    return ROOMS.index(room)


def imports_of(file):
    """The modules of the package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.startswith("rmq_spark."):
                yield name.removeprefix("rmq_spark.")


KNOWN = dict(modules())


@pytest.mark.parametrize("module", [name for name in KNOWN if name])
def test_a_module_imports_only_from_its_room_and_earlier_ones(module):
    here = room_of(module)
    later = {
        found
        for found in imports_of(KNOWN[module])
        if found in KNOWN and rank(room_of(found)) > rank(here)
    }
    assert not later, f"{module} is in {here}, which stands before the rooms that it imports"


def test_every_module_stands_in_a_room():
    homeless = {name for name in KNOWN if name and not room_of(name)}
    assert not homeless


def test_rooms_of_spark_do_not_know_each_other():
    """But for the listener and the jobs, which send by the sink's rules."""
    for lower, higher in pairwise(("spark.source", "spark.sink", "spark.table")):
        for module, file in KNOWN.items():
            if room_of(module) in (lower, higher):
                other = higher if room_of(module) == lower else lower
                met = {found for found in imports_of(file) if found.startswith(f"{other}.")}
                assert not met, f"{module} imports {met}"


def test_no_two_modules_share_a_name():
    names = Counter(name.rpartition(".")[2] for name, file in KNOWN.items() if is_module(file))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_folder_holds_too_many_modules():
    folders = Counter(file.parent for file in KNOWN.values() if is_module(file))
    assert max(folders.values()) <= MODULES_A_FOLDER


def test_no_module_is_too_long():
    lines = {name: len(file.read_text().splitlines()) for name, file in KNOWN.items()}
    assert {name: count for name, count in lines.items() if count > LINES_A_MODULE} == {}


def test_no_class_has_too_many_public_methods():
    counts = {
        f"{name}.{node.name}": len(public_methods(node))
        for name, file in KNOWN.items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert counts["client.broker.Broker"] > 1, "no methods are counted"
    assert {name: count for name, count in counts.items() if count > METHODS_A_CLASS} == {}


def public_methods(node):
    """Return the public methods of a class in its syntax tree, without properties."""
    return [
        one.name
        for one in node.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        and not one.name.startswith("_")
        and not any(ast.unparse(each) == "property" for each in one.decorator_list)
    ]


def is_module(file):
    return file.stem not in ("__init__", "__main__")
