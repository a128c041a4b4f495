"""The figures of the pages name the queues and the states of the code."""

import re

from rmq_spark.outbox.marks import EXPECTED
from rmq_spark.protocol.pages import QueueKind

from .pages import blocks_of


def figures_of(page):
    return [block.text for block in blocks_of(page) if block.language == "mermaid"]


def test_the_figure_of_a_message_has_every_queue():
    nodes = set(re.findall(r"\b[a-z]+\b", figures_of("README.md")[0]))
    assert {kind.value for kind in QueueKind} - nodes == set()


def test_the_figure_of_an_outbox_has_the_states_that_a_mark_sets():
    marks = re.findall(r"(\w+) --> (\w+): mark", figures_of("docs/outbox.md")[0])
    assert {after for _, after in marks} == set(EXPECTED)
    assert [(before, after) for before, after in marks if before not in EXPECTED[after]] == []
