"""The Lua scripts: found, assembled, and prepared for the server's version.

A script lies in ``lua/``; a line ``--- include name`` stands for ``lua/include/name.lua``, and
``--- include fractions`` for a list that is made here. A
checkout's ``lua/`` wins over a copy inside the package, which an editable install may have left
behind; a zip may carry either.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol, cast

from rmq_spark.protocol.claims import MESSAGES_A_CLAIM

_INCLUDE = re.compile(r"^--- include (\w+)$", re.MULTILINE)

# Scripts that store new messages must fail on a full server; all others free what they can, so
# they may run there (flags are known from Redis 7 on; 6.2 goes by each script's first write).
_STORING = frozenset({"send_first", "send_last", "stage"})
_READING = frozenset({"any_due", "due", "figures", "counts", "page"})
# What a replica need not have: the next renewal comes by itself, a lease that was not released ends
# by itself, a definition that is not changed after all is changed again by whoever wants it, a
# batch whose plan is forgotten takes nothing, and one that is not announced is not concluded.
_TRANSIENT = frozenset({"renew", "release", "alter", "plan", "announce"})
NAMES = (
    "alter",
    "announce",
    "any_due",
    "cancel",
    "claim",
    "commit",
    "conclude",
    "counts",
    "discard",
    "due",
    "expire",
    "figures",
    "give_back",
    "open",
    "page",
    "plan",
    "publish",
    "purge",
    "release",
    "renew",
    "replay",
    "requeue",
    "rollback",
    "seal",
    "send_first",
    "send_last",
    "settle",
    "stage",
    "unread",
    "unseal",
)


def settles_or_stores(name: str) -> bool:
    """Whether a failover that undid this script would lose or double messages."""
    return name not in _READING | _TRANSIENT


@dataclass(frozen=True)
class Script:
    """One script as a server gets it, and the digest it is called by."""

    name: str
    text: str

    @cached_property
    def sha(self) -> str:
        """The digest that EVALSHA takes."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class _Folder(Protocol):
    """A folder on disk or in a zip."""

    def is_dir(self) -> bool: ...

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


def fractions() -> str:
    """The Lua list of the texts of rank / 2048 without their zero; of rank 0 nothing.

    Joining texts is three times as fast as Redis' writing of numbers, and a list of constants costs
    a script next to nothing. Four digits are enough: behind the ms of a time from 1987 to 2109 the
    double that is nearest to them is rank / 2048 exactly, and Redis reads them faster than eleven.
    """
    ranks = range(MESSAGES_A_CLAIM)
    texts = [f"{rank / MESSAGES_A_CLAIM:.4f}".strip("0").removesuffix(".") for rank in ranks]
    return f"local FRACTIONS = {{{','.join(map(repr, texts))}}}"


def assemble(folder: _Folder, name: str) -> str:
    """The text of a script with its includes in their places."""

    def included(match: re.Match[str]) -> str:
        if match.group(1) == "fractions":
            return fractions()
        file = folder.joinpath("include", f"{match.group(1)}.lua")
        return file.read_text(encoding="utf-8").rstrip("\n")

    return _INCLUDE.sub(included, folder.joinpath(f"{name}.lua").read_text(encoding="utf-8"))


def _flags(name: str) -> str:
    if name in _READING:
        return "#!lua flags=no-writes\n"
    return "#!lua\n" if name in _STORING else "#!lua flags=allow-oom\n"


def load_scripts(folder: _Folder, knows_flags: bool) -> dict[str, Script]:
    """All scripts of a folder by name; with flags for a server of version 7 or later."""
    return {
        name: Script(name, (_flags(name) if knows_flags else "") + assemble(folder, name))
        for name in NAMES
    }


@cache
def scripts_for(knows_flags: bool) -> dict[str, Script]:
    """The scripts of this installation."""
    return load_scripts(_lua_folder(), knows_flags)
