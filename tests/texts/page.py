"""A page of the documentation: its blocks, its tables, and its lines that a shell runs."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from .. import ROOT

FILES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("[!.]*/README.md")]
NAMES = sorted({file.relative_to(ROOT).as_posix() for file in FILES})


class Unreadable(Exception):
    """A page lacks what its rules read; the message is the complaint."""


@dataclass(frozen=True)
class Block:
    """A fenced block. line: where its text begins, from 1."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """A text of this repository. name: its path from the top."""

    name: str
    text: str

    @classmethod
    def read(cls, name: str) -> Self:
        return cls(name, (ROOT / name).read_text(encoding="utf-8"))

    def at(self, where: int | str, complaint: str) -> str:
        """A complaint about a position or about the first place of a text."""
        position = where if isinstance(where, int) else max(self.text.find(where), 0)
        line = self.text.count("\n", 0, position) + 1
        return f"{self.name}:{line}: {complaint}"

    @cached_property
    def blocks(self) -> list[Block]:
        found, fence, start = [], None, 0
        lines = self.text.splitlines()
        for number, line in enumerate(lines, 1):
            mark = re.match(r" *(`{3,}|~{3,})\s*(\S*)", line)
            if fence is None and mark:
                fence, start = mark, number
            elif fence is not None and mark and mark[1].startswith(fence[1]) and not mark[2]:
                text = textwrap.dedent("\n".join(lines[start : number - 1]))
                found.append(Block(fence[2], text, start + 1))
                fence = None
        if fence is not None:
            raise Unreadable(f"{self.name}:{start}: the block has no end. Close it with {fence[1]}")
        return found

    def blocks_of(self, *languages: str) -> list[Block]:
        return [block for block in self.blocks if block.language in languages]

    def commands(self) -> Iterator[tuple[int, str]]:
        """The commands of its sh blocks, each with the line that its block begins at."""
        for block in self.blocks_of("sh"):
            yield from ((block.line, command_of(line)) for line in lines_of(block))

    def section(self, heading: str) -> str:
        """What stands below a heading, up to the next one."""
        # Within a block a # begins no heading.
        text = re.sub(r"^```.*?^```$", _hidden, self.text, flags=re.M | re.S)
        found = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.M | re.S)
        if len(found) != 1:
            raise Unreadable(f"{self.name}: {len(found)} headings are '{heading}'. Write one")
        return found[0].replace("\0", "#")

    def rows(self, heading: str) -> list[list[str]]:
        """The first table below a heading: a list of cells for each row."""
        tables = re.findall(r"(?:^\|.*\n)+", self.section(heading), re.M)
        if not tables:
            raise Unreadable(self.at(f"# {heading}\n", "has no table below it. Write one"))
        head, _, *rows = [_cells(line) for line in tables[0].splitlines()]
        for row in rows:
            if len(row) != len(head):
                raise Unreadable(self.at(row[0], f"a row of {len(row)} cells. Write {len(head)}"))
        return rows

    def by_name(self, heading: str) -> dict[str, list[str]]:
        """The other cells of each row, by the first one."""
        rows = self.rows(heading)
        found = {plain(name): cells for name, *cells in rows}
        if len(found) < len(rows):
            raise Unreadable(self.at(f"# {heading}\n", "names something twice. Merge the rows"))
        return found


def plain(cell: str) -> str:
    return cell.replace("`", "")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _hidden(block: re.Match[str]) -> str:
    return block[0].replace("#", "\0")


def lines_of(block: Block) -> list[str]:
    """The lines of a sh block as they stand, those that end in a backslash joined to the next."""
    return re.findall(r"(?:.*\\\n)*.+", block.text)


def command_of(line: str) -> str:
    """A line without its comment, its words one blank apart."""
    return " ".join(re.sub(r"(^|\s)#.*", "", line.replace("\\\n", " ")).split())


PAGES = {name: Page.read(name) for name in NAMES}
