"""Docstrings of functions begin with a verb in the imperative."""

import ast

import pytest

from .test_rooms import modules

IMPERATIVES_IN_S = {"pass", "process", "press", "discuss", "guess", "express", "address", "focus"}
NO_VERBS = {
    *("a", "an", "all", "any", "each", "every", "its", "no", "none", "nothing", "one", "only"),
    *("some", "that", "the", "their", "there", "these", "they", "those", "of", "from", "to", "in"),
    *("how", "if", "when", "what", "where", "whether", "which", "who", "whose", "why", "with"),
}
PROPERTIES = {"property", "cached_property"}


def begins_with_a_verb(docstring):
    """Whether the first word can be an imperative: "Return the slot." and not "Returns"."""
    first = docstring.split()[0].strip("`\"'.,:;")
    word = first.lower()
    if not first.isalpha() or word in NO_VERBS or first.isupper():
        return False
    return not word.endswith("s") or word in IMPERATIVES_IN_S


def is_property(function):
    """Whether a function is read as an attribute, whose docstring is a noun phrase."""
    named = [getattr(one, "attr", getattr(one, "id", "")) for one in function.decorator_list]
    return bool(PROPERTIES & set(named))


def docstrings(tree):
    """The name and docstring of every function, public or private, except properties."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and not is_property(function):
            text = ast.get_docstring(function)
            if text:
                yield function.name, text


@pytest.mark.parametrize("file", [pytest.param(file, id=name) for name, file in modules()])
def test_docstrings_of_functions_begin_with_a_verb(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wrong = [f"{name}: {text}" for name, text in docstrings(tree) if not begins_with_a_verb(text)]
    assert wrong == []


@pytest.mark.parametrize(
    ("docstring", "accepted"),
    [
        ("Return the slot.", True),
        ("Pass the rows on.", True),
        ("List the topics.", True),
        ("Returns the slot.", False),
        ("The slot.", False),
        ("What there is.", False),
        ("Whether it runs.", False),
        ("ZSET: content -> score.", False),
        ("slot_of for many.", False),
    ],
)
def test_the_first_word_decides(docstring, accepted):
    assert begins_with_a_verb(docstring) is accepted
