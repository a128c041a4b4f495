"""Rules of words: plain ones, in short sentences."""

import ast
import re
from collections.abc import Iterator

from .modules import Module
from .page import Page

MOST_WORDS = 30
MOST_LINES = 200
# What must be read twice, and what to write instead.
BANNED = {
    r"is told by|are told by": "say who does it: 'Set ... with'",
    r"what (?:is|was) rolled back": "a message that is rolled back",
    r"what became of": "the result of",
    r"(?:that|what|which) (?:is|are) (?-i:none)|(?:is|are) none of": "is not a",
    r"but for": "except",
    r"as a rule": "usually",
    r"of two, one": "one of the two",
    r"one after the other": "in order, one at a time",
    r"in the whole world": "across the whole cluster",
    r"hangs? on": "depends on, derives from",
    r"for ever": "forever, without end",
    r"anew": "again",
    r"whoever": "anyone who, a program that",
    r"tells?": "show, say",
    r"what there is": "name it",
    r"long since": "already",
}
_BANNED = re.compile(
    r"(?i)\b(?:{})\b".format("|".join(f"({each})" for each in BANNED).replace(" ", r"\s+"))
)


def prose_of(text: str) -> str:
    """A page without its blocks, code, and the targets of links; the lines stay as they are."""
    text = re.sub(r"^ *```.*?^ *```", _blank_lines, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", lambda code: f"code{_blank_lines(code)}", text)
    return re.sub(r"\]\([^)]*\)", lambda link: f"]{_blank_lines(link)}", text)


def _blank_lines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _banned_in(text: str) -> Iterator[tuple[int, str]]:
    """The line of each banned word from 0, and what to write instead."""
    prose = prose_of(text)
    for match in _BANNED.finditer(prose):
        word, instead = " ".join(match[0].split()), [*BANNED.values()][(match.lastindex or 0) - 1]
        line = prose.count("\n", 0, match.start())
        yield line, f"{word!r} must be read twice. Write: {instead}"


def banned_words(page: Page) -> Iterator[str]:
    for line, complaint in _banned_in(page.text):
        yield f"{page.name}:{line + 1}: {complaint}"


def banned_in_code(module: Module) -> Iterator[str]:
    """Docstrings, errors and help use the words that pages use."""
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for line, complaint in _banned_in(node.value):
                yield module.at(node.lineno + line, complaint)


def long_sentences(page: Page) -> Iterator[str]:
    """An item of a list and a cell of a table are sentences, too."""
    ends = re.compile(r"\n\s*\n|\n(?=#|[-*|] ?|\d+\. )|\||(?<=[.!?:;])\s|\Z")
    prose, start = prose_of(page.text), 0
    for end in ends.finditer(prose):
        words = prose[start : end.start()].split()
        if len(words) > MOST_WORDS:
            line = prose.count("\n", 0, start) + 1
            yield f"{page.name}:{line}: a sentence of {len(words)} words. Write {MOST_WORDS}"
        start = end.end()


def long_page(page: Page) -> Iterator[str]:
    lines = page.text.count("\n")
    if lines >= MOST_LINES:
        yield f"{page.name}: has {lines} lines. Write fewer than {MOST_LINES}"
