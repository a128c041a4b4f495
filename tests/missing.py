"""What a machine lacks: a test that needs it is skipped on a laptop and fails in CI."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

# How a skip for something that can be installed begins, for the count at the end of a run.
NEEDS = "Needs "


def do_without(what: str, install: str) -> NoReturn:
    """Skip the test, or fail it in CI. install: the command that brings what is missing."""
    text = f"{NEEDS}{what}: {install}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def found(name: str, what: str, install: str) -> str:
    """Return the path of a program on PATH; a test that lacks it does without."""
    return shutil.which(name) or do_without(what, install)


def counted(reasons: Iterable[str]) -> list[str]:
    """A line for each reason for which tests were skipped, the most frequent first."""
    return [f"{count} skipped. {reason}" for reason, count in Counter(reasons).most_common()]
