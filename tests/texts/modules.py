"""Rules of the package: imports go downward, and docstrings name what is there."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from rmq_spark.topics.definition import SETTINGS

from .. import ROOT
from .page import Page

PACKAGE = ROOT / "rmq_spark"
# In this order; modules of spark/ in no room of their own are shared by its rooms, except its top.
ROOMS_OF_SPARK = (
    "spark",
    *("spark.source", "spark.sink", "spark.tables", "spark.listener", "spark.datasource"),
)
# These do not know each other; the listener and the jobs send by the sink's rules.
STRANGERS = ("spark.source", "spark.sink", "spark.tables")
# Names with an underscore, not part of a path or of a file's name.
NAME = re.compile(r"(?<![\w./-])_?[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?!\.\w|/)")
# The modules with which a sentence of a guide begins, or that it says to read first.
GUIDED = re.compile(
    r"(?:[.;] (?:- )?|\bRead |, then )((?:[a-z_.]+, )*[a-z_.]*[a-z_](?: and [a-z_]+)?)\b"
)
# A metric, a key in Redis, an argument of redis-py, and a library.
OTHER_NAMES = {"rmq_up", "rmq_topics", "socket_timeout", "htmx"}


@dataclass(frozen=True)
class Module:
    """A module, parsed once. name: with dots, without the name of the package."""

    path: str
    name: str
    tree: ast.Module

    def at(self, line: int, complaint: str) -> str:
        return f"{self.path}:{line}: {complaint}"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [*ast.walk(self.tree)]

    @cached_property
    def identifiers(self) -> set[str]:
        """Every name that it defines, imports or uses."""
        naming = ("id", "attr", "arg", "name", "asname")
        values = (vars(node).get(field) for node in self.nodes for field in naming)
        return {part for text in values if isinstance(text, str) for part in text.split(".")}

    def imports(self) -> Iterator[tuple[int, str]]:
        """The modules of the package that it imports, wherever in it, with the line."""
        for node in self.nodes:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
            for name in names:
                if name.startswith("rmq_spark."):
                    yield node.lineno, name.removeprefix("rmq_spark.")


Modules = dict[str, Module]


def parsed(path: str, text: str) -> Module:
    parts = path.removeprefix("rmq_spark/").removesuffix(".py").split("/")
    name = ".".join(part for part in parts if part != "__init__")
    return Module(path, name, ast.parse(text))


@cache
def modules() -> Modules:
    """Every module of the package by its name, in order."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = [parsed(f.relative_to(ROOT).as_posix(), f.read_text(encoding="utf-8")) for f in files]
    return {module.name: module for module in found}


def rooms() -> list[str]:
    """A room imports from itself and from rooms earlier in the list: the table of CONTRIBUTING."""
    cells = Page.read("CONTRIBUTING.md").by_name("Find your way in the code")
    found = [cell.removeprefix("rmq_spark/").removesuffix(".py") for cell in cells]
    at = found.index("spark")
    return [*found[:at], *ROOMS_OF_SPARK, *found[at + 1 :]]


def upward_imports(known: Modules) -> Iterator[str]:
    order = rooms()

    def room_of(module: str) -> str:
        fitting = [room for room in order if f"{module}.".startswith(f"{room}.")]
        return max(fitting, key=len, default="")

    for module in known.values():
        here = room_of(module.name)
        if module.name and not here:
            yield f"{module.path}: stands in no room. Add its folder to the table in CONTRIBUTING"
        for line, found in module.imports() if here else ():
            there = room_of(found) if found in known else here
            if order.index(there) > order.index(here):
                yield module.at(
                    line, f"imports {found} of {there}, which stands above {here}. Move one of them"
                )
            elif there != here and {there, here} <= {*STRANGERS}:
                yield module.at(
                    line, f"imports {found}. Move what {here} and {there} share into spark"
                )


def unknown_names(known: Modules) -> Iterator[str]:
    """A docstring names modules, scripts, settings and identifiers of the package."""
    names = {part for module in known for part in module.split(".")}
    names |= {script.stem for script in (ROOT / "lua").rglob("*.lua")} | OTHER_NAMES
    names = names.union(SETTINGS, *(module.identifiers for module in known.values()))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for module in known.values():
        for node in module.nodes:
            text = isinstance(node, documented) and ast.get_docstring(node, clean=False)
            for found in NAME.finditer(text or ""):
                if found[0] not in names:
                    line = node.body[0].lineno + text.count("\n", 0, found.start())
                    yield module.at(line, f"{found[0]} is not in the package. Name what is")


def stale_guides(known: Modules) -> Iterator[str]:
    """The docstring of a room names modules that are there."""
    for module in known.values():
        if module.path.endswith("__init__.py"):
            guide = " ".join((ast.get_docstring(module.tree) or "").split())
            for names in GUIDED.findall(guide):
                for name in re.split(", | and ", names):
                    if not {name, f"{module.name}.{name}"} & (known.keys() | OTHER_NAMES):
                        yield module.at(1, f"{name} is no module there. Name what is")


def untested_scripts(scripts: Iterable[str], tests: Collection[str]) -> Iterator[str]:
    for name in sorted(scripts):
        if f"test_{name}" not in tests:
            yield f"lua/{name}.lua: has no tests. Write tests/lua/test_{name}.py"
