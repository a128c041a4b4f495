"""The Lua scripts, loaded from ``lua/`` and prepared for the version of the server.

Every file in ``lua/`` is a script; a line of its header names its effect. A line ``--- include
name`` stands for ``lua/include/name.lua``. An include can name other includes in the same way; a
script contains each only once.

In a checkout, ``lua/`` takes precedence over a copy inside the package, which an editable install
may have left behind. In a zip, ``lua/`` may be inside or beside the package.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol, cast

_INCLUDE = re.compile(r"^--- include (\w+)$", re.MULTILINE)

_EFFECT = re.compile(r"^-- Effect: (\w+)$", re.MULTILINE)
# A function of a file: its name, and all its lines.
_FUNCTION = re.compile(r"^local function (\w+)(?:.* end|.*\n(?:(?!end$).*\n)*end)\n", re.MULTILINE)
_COMMENT = re.compile(r"--.*")


class Effect(StrEnum):
    """The effect of a script on messages, from the line ``-- Effect:`` of its header."""

    READS = "reads"
    # Stores or stages new messages. A full server refuses it.
    STORES = "stores"
    # Moves or removes existing messages. Runs on a full server, where it may free memory.
    MOVES = "moves"
    # Losing its writes does no harm, so replicas need not confirm them: the next renewal comes
    # anyway, a lease that was not released expires, a change of a definition and a deletion can be
    # repeated, a batch without a plan takes nothing, and a batch without an announcement is not
    # concluded.
    TRANSIENT = "transient"


# For Redis 7 and later. Redis 6.2 judges a script by its first write instead.
_FLAGS = {
    Effect.READS: "#!lua flags=no-writes\n",
    Effect.STORES: "#!lua\n",
    Effect.MOVES: "#!lua flags=allow-oom\n",
    Effect.TRANSIENT: "#!lua flags=allow-oom\n",
}


@dataclass(frozen=True)
class Script:
    """A script as a client sends it to a server."""

    name: str
    text: str
    effect: Effect

    @cached_property
    def sha(self) -> str:
        """The SHA-1 digest by which EVALSHA calls the script."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @property
    def needs_replicas(self) -> bool:
        """Whether messages are lost or doubled if a failover loses the writes of the script."""
        return self.effect in (Effect.STORES, Effect.MOVES)


class _Folder(Protocol):
    """A folder on disk or in a zip."""

    def is_dir(self) -> bool: ...

    def iterdir(self) -> Iterator[Traversable]: ...

    def joinpath(self, *names: str) -> Traversable: ...


def _lua_folder() -> _Folder:
    package = resources.files("rmq_spark")
    candidates: list[_Folder] = []
    if isinstance(package, Path):
        if (package.parent / "pyproject.toml").is_file():
            candidates.append(package.parent / "lua")
        candidates.append(package / "lua")
    else:
        beside = cast(_Folder, getattr(package, "parent", package))
        candidates += [package.joinpath("lua"), beside.joinpath("lua")]
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        "The folder lua/ of rmq-spark is missing: neither beside nor inside the package rmq_spark. "
        "Install the wheel, or add lua/ to the zip."
    )


def assemble(folder: _Folder, name: str) -> str:
    """Return the text of a script with all its includes filled in, each of them once.

    Functions that nothing names are left out: Redis makes all of them at each call.
    """
    there: set[str] = set()

    def included(match: re.Match[str]) -> str:
        include = match.group(1)
        if include in there:
            return ""
        there.add(include)
        return filled(include_text(folder, include)).rstrip("\n")

    def filled(text: str) -> str:
        return _INCLUDE.sub(included, text)

    return _without_unused(filled(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8")))


def _without_unused(text: str) -> str:
    functions = {match.group(1): match.group() for match in _FUNCTION.finditer(text)}
    used, found = set[str](), _FUNCTION.sub("", text)
    while found:
        named = functions.keys() & re.findall(r"\w+", _COMMENT.sub("", found))
        found = "".join(functions[name] for name in named - used)
        used |= named
    return _FUNCTION.sub(lambda match: match.group() if match.group(1) in used else "", text)


def include_text(folder: _Folder, name: str) -> str:
    """Return the text of an include, in which its own includes are not filled in."""
    return folder.joinpath("include", f"{name}.lua").read_text(encoding="utf-8")


def script_names(folder: _Folder) -> list[str]:
    """Return the names of the scripts in a folder, sorted."""
    files = [file.name for file in folder.iterdir()]
    return sorted(name.removesuffix(".lua") for name in files if name.endswith(".lua"))


def load_scripts(folder: _Folder, knows_flags: bool) -> dict[str, Script]:
    """Load all scripts of a folder. knows_flags: as for scripts_for. Raises ValueError."""
    return {name: _load(folder, name, knows_flags) for name in script_names(folder)}


def _load(folder: _Folder, name: str, knows_flags: bool) -> Script:
    text = assemble(folder, name)
    found = _EFFECT.search(text)
    if found is None:
        raise ValueError(f"The header of {name}.lua lacks the line '-- Effect: ...'.")
    effect = Effect(found.group(1))
    return Script(name, (_FLAGS[effect] if knows_flags else "") + text, effect)


@cache
def scripts_for(knows_flags: bool) -> dict[str, Script]:
    """Load the scripts of this installation. knows_flags: whether the server reads their flags."""
    return load_scripts(_lua_folder(), knows_flags)
