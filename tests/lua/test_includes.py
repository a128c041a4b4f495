"""An include says what it needs and what it defines, and takes everything else as parameters."""

import re
from functools import cached_property

import pytest
from luaparser import ast, astnodes

from rmq_spark.protocol import scripts

FOLDER = scripts._lua_folder()
INCLUDES = sorted(f.stem for f in (FOLDER / "include").glob("*.lua"))
# What Redis gives every script, as far as these use it.
GIVEN = {"redis", "cmsgpack", "math", "string", "struct", "table", "unpack"}
GIVEN |= {"ipairs", "next", "pairs", "tonumber", "type"}
ARGUMENTS = {"KEYS", "ARGV"}


class Scope:
    """Walks a block in order: a name is free that nothing above it in sight declares."""

    def __init__(self, outer=None, names=()):
        self.outer = outer
        self.declared = [name.id for name in names if isinstance(name, astnodes.Name)]
        self.free = set() if outer is None else outer.free

    def knows(self, name):
        return name in self.declared or (self.outer is not None and self.outer.knows(name))

    def see(self, *parts):
        for part in parts:
            if isinstance(part, list):
                self.see(*part)
            elif isinstance(part, astnodes.Node):
                self.see_node(part)

    def see_node(self, node):
        match node:
            case astnodes.Name():
                self.free |= set() if self.knows(node.id) else {node.id}
            case astnodes.Block():
                Scope(self).see(node.body)
            case astnodes.LocalAssign():
                self.see(node.values)
                self.declared += [target.id for target in node.targets]
            case astnodes.LocalFunction():
                self.declared.append(node.name.id)
                Scope(self, node.args).see(node.body)
            case astnodes.AnonymousFunction():
                Scope(self, node.args).see(node.body)
            case astnodes.Fornum():
                self.see(node.start, node.stop, node.step)
                Scope(self, [node.target]).see(node.body)
            case astnodes.Forin():
                self.see(node.iter)
                Scope(self, node.targets).see(node.body)
            case astnodes.Index(notation=astnodes.IndexNotation.DOT):
                self.see(node.value)
            case astnodes.Field(between_brackets=False):
                self.see(node.value)
            case _:
                self.see(*vars(node).values())


class Chunk:
    """A file by itself. declared: its names at the top; free: names that it declares nowhere."""

    def __init__(self, text):
        self._text = text
        self.needs = re.findall(r"^--- include (\w+)$", text, re.M)
        defines = re.search(r"^-- Defines: (.+(?:\n--   .+)*)", text, re.M)
        self.defines = re.findall(r"\w+", defines.group(1)) if defines else []

    @cached_property
    def _scope(self):  # parsing takes as long as many tests
        scope = Scope()
        scope.see(ast.parse(self._text).body.body)
        return scope

    @property
    def declared(self):
        return self._scope.declared

    @property
    def free(self):
        return self._scope.free


CHUNKS = {name: Chunk(scripts.include_text(FOLDER, name)) for name in INCLUDES}
SCRIPTS = {
    name: Chunk(FOLDER.joinpath(f"{name}.lua").read_text()) for name in scripts.script_names(FOLDER)
}
FILES = [*CHUNKS.items(), *SCRIPTS.items()]


def defined_by(names):
    return {defined for name in names for defined in CHUNKS[name].defines}


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("local function f(a) return a + b end", {"b"}),
        ("local a = a", {"a"}),
        ("f(a.b, a[c], {d = e, [g] = h})", {"f", "a", "c", "e", "g", "h"}),
        ("if a then local b = 1 end return b", {"a", "b"}),
        ("for i = 1, n do local c = i end for k, v in f() do c = k end", {"n", "f", "c"}),
        ("local f = function(...) return g(...) end return f(g)", {"g"}),
        ("local function f() return f() end f(function(a) return a end)", set()),
    ],
)
def test_names_that_a_text_declares_nowhere_are_found(text, free):
    assert Chunk(text).free == free


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_uses_only_what_it_declares_or_includes(name):
    assert CHUNKS[name].free <= GIVEN | defined_by(CHUNKS[name].needs)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_uses_only_what_it_declares_or_includes(name):
    assert SCRIPTS[name].free <= GIVEN | ARGUMENTS | defined_by(SCRIPTS[name].needs)


@pytest.mark.parametrize(("name", "chunk"), FILES, ids=[name for name, _ in FILES])
def test_whatever_is_included_is_used(name, chunk):
    assert chunk.needs == sorted(set(chunk.needs))
    assert [need for need in chunk.needs if not chunk.free & defined_by([need])] == []


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_declares_what_it_says_that_it_defines_and_others_use_it(name):
    defines = set(CHUNKS[name].defines)
    assert defines
    assert defines <= set(CHUNKS[name].declared)
    assert defines <= {used for _, chunk in FILES if name in chunk.needs for used in chunk.free}


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_name_at_the_top_of_a_script_is_declared_twice(name):
    """Else an include would hide what another one, or the script, has under that name."""
    whole = Chunk(scripts.assemble(FOLDER, name))
    named = [declared for declared in whole.declared if declared != "_"]
    assert sorted(named) == sorted(set(named))
    assert whole.free <= GIVEN | ARGUMENTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_no_function_that_it_does_not_call(name):
    whole = re.sub(r"--.*", "", scripts.assemble(FOLDER, name))
    functions = re.findall(r"^local function (\w+)", whole, re.M)
    assert [each for each in functions if len(re.findall(rf"\b{each}\b", whole)) == 1] == []
