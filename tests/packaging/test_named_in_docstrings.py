"""Names with an underscore in docstrings are modules, scripts or identifiers of the package."""

import ast
import re

import pytest

from .. import ROOT
from .test_rooms import modules

# Not part of a path or of a file's name.
NAME = re.compile(r"(?<![\w./-])_?[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?![./])")
# A metric, a key in Redis, and an argument of redis-py.
OTHER_NAMES = {"rmq_up", "rmq_topics", "socket_timeout"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
FILES = list(modules())


def identifiers(tree):
    """Every name that a module defines, imports or uses."""
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name", "asname"):
            text = getattr(node, attribute, None)
            if isinstance(text, str):
                yield from text.split(".")


def named_in_docstrings(tree):
    """Every name with an underscore in the docstrings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            yield from NAME.findall(ast.get_docstring(node) or "")


def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def known():
    names = {part for module, _ in FILES for part in module.split(".")}
    names |= {script.stem for script in (ROOT / "lua").rglob("*.lua")} | OTHER_NAMES
    return names.union(*(identifiers(tree_of(file)) for _, file in FILES))


@pytest.mark.parametrize("file", [pytest.param(file, id=name) for name, file in FILES])
def test_docstrings_name_what_there_is(file, known):
    assert sorted(set(named_in_docstrings(tree_of(file))) - known) == []


def test_a_name_that_is_gone_is_found(known):
    tree = ast.parse('"""Read gone_module first, then task_reader and jobs/no_name.py."""')
    assert set(named_in_docstrings(tree)) - known == {"gone_module"}
