"""Every page of the documentation runs: its code, in an empty folder, on a Redis of its own."""

import pytest

from ..texts.page import NAMES
from .pages import comparable, outputs_of, run_page
from .readers import PRINTED, VARYING

# The pages that take longest, and whose subjects have quicker tests.
LONG = {
    f"docs/{name}.md"
    for name in (
        *(
            "console",
            "consume",
            "install",
            "jobs",
            "keys",
            "operations",
            "order",
            "ownership",
            "recipes",
            "retries",
            "send-from-spark",
        ),
        *("services", "traces", "tutorial", "upgrade"),
    )
}


def of_page(name):
    return pytest.param(name, marks=[pytest.mark.long(every=4)] if name in LONG else [])


@pytest.mark.timeout(600)  # whole minutes on a machine that has much else to do
@pytest.mark.parametrize("name", map(of_page, NAMES))
def test_the_blocks_of_a_page_run(name, tmp_path):
    printed = run_page(name, tmp_path)
    lines = printed.splitlines()
    assert [line for line in PRINTED.get(name, []) if line not in lines] == []
    if printed:
        there = set(map(comparable, lines))
        varying = tuple(VARYING.get(name, ()))
        shown = [line for line in outputs_of(name) if not line.startswith(varying)]
        assert [line for line in shown if line not in there] == [], printed
