"""Every file of this repository that a page names is there."""

import re
from pathlib import Path

import pytest

from .pages import NAMES, ROOT, text_of

PAGES = sorted({*NAMES, "CONTRIBUTING.md", "lua/README.md"})
# A name of a file of ours, in code: what users make in the course of a page has no folder of ours.
FILE = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|lua))`")


def named_in(text):
    return sorted(set(FILE.findall(text)))


def is_there(name, beside):
    """Whether a file stands where a page says: seen from the top, or from beside the page."""
    return (ROOT / name).is_file() or (beside / name).is_file()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_files_that_are_there(page):
    beside = (ROOT / page).parent
    missing = [name for name in named_in(text_of(page)) if not is_there(name, beside)]
    assert missing == []


def test_a_file_that_is_not_there_is_found():
    assert named_in("see `rmq_spark/gone.py`, `a.b`, and `lua/claim.lua`") == [
        "lua/claim.lua",
        "rmq_spark/gone.py",
    ]
    assert not is_there("rmq_spark/gone.py", Path(ROOT))
    assert is_there("lua/claim.lua", Path(ROOT))
