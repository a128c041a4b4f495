"""Every link of a page to a file of this repository, and to a heading in it, leads there."""

import re
from collections import Counter

import pytest

from .pages import NAMES, ROOT, text_of

RESULTS = [file.relative_to(ROOT).as_posix() for file in ROOT.glob("bench/results/*.md")]
LINKING = sorted({*NAMES, *RESULTS, "CHANGELOG.md"})
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(name):
    """A page without its blocks and code, in which brackets mean something else."""
    text = re.sub(r"^ *```.*?^ *```$", "", text_of(name), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", "", code[0]), text)


def anchors(name):
    """What its headings are called in links: as GitHub makes it."""
    found, seen = set(), Counter()
    for heading in re.findall(r"^#+ +(.*?) *$", prose(name), re.MULTILINE):
        words = LINK.sub("", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def broken(name):
    for link in LINK.findall(prose(name)):
        if not re.match(r"[a-z]+:", link) and not leads_somewhere(name, link):
            yield link


def leads_somewhere(name, link):
    path, _, anchor = link.partition("#")
    file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
    if not (file.exists() and file.is_relative_to(ROOT)):
        return False
    return not anchor or anchor in anchors(file.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("name", LINKING)
def test_the_links_of_a_page_lead_somewhere(name):
    assert list(broken(name)) == []


def test_a_link_to_nothing_is_found(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("# One `two`, three\n[a](#one-two-three) [b](#one) [c](x.md)")
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    assert list(broken("page.md")) == ["#one", "x.md"]


def test_the_index_names_every_page():
    linked = set(LINK.findall(prose("docs/README.md")))
    pages = {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")}
    assert pages - linked - {"README.md"} == set()
