"""Pages, docstrings, errors and help use plain words, and the README uses short sentences."""

import ast
import re
from pathlib import Path

import pytest

from .pages import NAMES, ROOT, text_of

MOST_WORDS = 30
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
PAGES = sorted({*NAMES, "CONTRIBUTING.md"})
MODULES = sorted((ROOT / "rmq_spark").rglob("*.py"))


def prose_of(text):
    """Return a page without code, tables and links' targets."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def banned_in(text):
    """Return the banned words in a text, with what to write instead."""
    one_line = " ".join(text.split())
    return {
        match[0]: instead
        for pattern, instead in BANNED.items()
        for match in re.finditer(rf"(?i)\b(?:{pattern})\b", one_line)
    }


def sentences_of(text):
    """Return the sentences of a page; an item of a list and a cell of a table are some, too."""
    parts = re.split(r"\n\s*\n|\n(?=#|[-*|] ?|\d+\. )|\|", prose_of(text))
    return [
        " ".join(sentence.split())
        for part in parts
        for sentence in re.split(r"(?<=[.!?:;])\s", part)
        if sentence.strip()
    ]


def texts_of(path: Path):
    """Return the docstrings, errors and help texts of a module."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and " " in text]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_banned_word(page):
    assert banned_in(prose_of(text_of(page))) == {}


def test_docstrings_errors_and_help_have_no_banned_word():
    assert len(MODULES) > 200
    texts = {path: prose_of("\n\n".join(texts_of(path))) for path in MODULES}
    found = {path.relative_to(ROOT).as_posix(): banned_in(text) for path, text in texts.items()}
    assert {path: words for path, words in found.items() if words} == {}


def test_the_readme_has_no_long_sentence():
    found = sentences_of(text_of("README.md"))
    assert len(found) > 50
    assert [each for each in found if len(each.split()) > MOST_WORDS] == []


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) < 200


def test_banned_words_are_found():
    text = "One fails,\nas a  rule the older; `tell` a value that is none."
    assert sorted(banned_in(prose_of(text))) == ["as a rule", "that is none"]
    assert banned_in("None of them; return None if there is none.") == {}


def test_a_long_sentence_is_found():
    text = f"Short. {'word ' * 31}end.\n\n- an item\n| a cell | another |\n"
    lengths = [len(each.split()) for each in sentences_of(text)]
    assert lengths == [1, 32, 3, 2, 1]
