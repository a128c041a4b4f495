"""Each rule finds what it is there for: a small wrong text, and the complaint about it."""

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from . import modules, notebooks, pages, shapes, words
from . import reference as ref
from .modules import parsed
from .page import PAGES, Page
from .rules import RULES, applied

W29 = "word " * 28 + "word"
OPTIONS = """.option("topic", "Ab")
    .option("topicType", "FixedTime")  # the first use
    .option("slotAmount", 16)"""
TUTORIAL = "docs/tutorial.md"
FROM_SOURCE = "from rmq_spark.spark.source import y"
REDIS = 'redis = LocalRedis().start()\nos.environ["RMQ_REDIS_URL"] = redis.url'
CELL = new_code_cell(REDIS, id="one", execution_count=1)
LINK = new_markdown_cell("[page](../docs/order.md)", id="two")
METADATA = nbformat.from_dict(notebooks.METADATA)
NOTEBOOK = new_notebook(cells=[CELL, LINK], metadata=METADATA)
OUTPUTS = (
    ("errors or warnings", new_output("stream", name="stderr", text="WARN")),
    ("errors or warnings", new_output("error", ename="A", evalue="1", traceback=[])),
    ("41 lines", new_output("stream", text="x\n" * 41)),
    ("a plot of 45000", new_output("display_data", {"image/png": "x" * 60_000})),
    ("the name of a place", new_output("stream", text="in /tmp/rmq-1/spark.log")),
    ("the name of a place", new_output("stream", text="redis://somewhere:6379/0")),
    ("the name of a place", new_output("display_data", {"text/plain": "/home/ada/x"})),
)
CELLS = (
    ("was not run from top to bottom: [2]", {"execution_count": 2}),
    ("3f2a9c10 is no id of words", {"id": "3f2a9c10"}),
    ("one has the metadata", {"metadata": {"execution": {}}}),
    ("is no notebook", {"source": 1}),
)


def page(text):
    return Page("docs/page.md", text)


def sh(line):
    return page(f"A page.\n```sh\n{line}\n```")


MAKE = "rmq create Ab --type Priority"
MAKES_AB = {"one": sh(MAKE)}


def code(path, text, other="errors"):
    """Two modules; the other one is empty."""
    found = (parsed(f"rmq_spark/{path}.py", text), parsed(f"rmq_spark/{other}.py", ""))
    return [{module.name: module for module in found}]


def changed(name, old, new):
    """A page of ours with one text changed."""
    assert old in PAGES[name].text
    return [Page(name, PAGES[name].text.replace(old, new))]


def ours(old, new):
    return changed("docs/reference.md", old, new)


def protocol(old, new):
    return changed("docs/protocol.md", old, new)


def outbox(old, new):
    return changed("docs/outbox.md", old, new)


def notebook(*outputs, **cell):
    found = copy.deepcopy(NOTEBOOK)
    found.cells[0].outputs += outputs
    found.cells[0].update(nbformat.from_dict(cell))
    return "quickstart", found


# A rule, its arguments, and parts of what it finds.
CASES = [
    (words.banned_words, [page("`tell`.\nAs a\nrule, none.")], ["md:2: 'As a rule'"]),
    (words.banned_words, [page("None of it; if there is none; that is none")], ["is none"]),
    (
        words.banned_in_code,
        [parsed("x.py", '"""Read.\n\nSent anew."""')],
        ["x.py:3: 'anew' must be"],
    ),
    (words.banned_in_code, [parsed("x.py", 'f(f"{1} but for")')], ["x.py:1: 'but for' must be"]),
    (words.long_sentences, [page(f"{W29}.\n\n- {W29}\n- {W29}\n| {W29} w w|")], [":5: a"]),
    (words.long_page, [page("\n" * 200)], ["docs/page.md: has 200 lines. Write fewer"]),
    (pages.broken_links, [page("# A `b`, 3\n[a](#a-b-3) [b](#b)")], [":2: #b leads to no head"]),
    (pages.broken_links, [page("[a](order.md#gone) [b](https://x)")], ["gone leads to no hea"]),
    (
        pages.broken_links,
        [page("[a](x.md) `[b](c)`\n[d](../..)")],
        [":1: x.md leads to", ":2: ../.. "],
    ),
    (shapes.broken_tables, [page("| a |\n|---|\n| `b` |\n\n| c |\n")], [":5: a row outside"]),
    (
        shapes.broken_tables,
        [page("| a | b |\n|---|---|\n| `c\\|d` | e |\n| f |")],
        [":4: a row of 1"],
    ),
    (shapes.broken_tables, [page("```\n| a |\n```")], []),
    (
        shapes.accidental_lists,
        [page("There are\n2. We\n- or\n+ more")],
        [":2: 2.", ":3: -", ":4: +"],
    ),
    (shapes.accidental_lists, [page("In\n\n2026. It\n\n- a\n  - b")], [":3: 2026.", ":6: -"]),
    (shapes.accidental_lists, [page("See:\n\n1. a\n   b\n2. c\n\nSo\n\n- a\n- b")], []),
    (pages.unlinked_pages, changed("docs/README.md", "(order.md)", "()"), ["to docs/order.md"]),
    (pages.missing_files, [page("`a/gone.py`, `lua/claim.lua`, `write_tables.py`")], ["a/gone.py"]),
    (pages.unknown_extras, [page("\n'rmq-spark[spark,gone]'")], ["md:2: there is no extra gone"]),
    (
        pages.unknown_classes,
        [page("`Broker.create`, `Gone.x`")],
        ["docs/page.md:1: Gone is not in"],
    ),
    (pages.unknown_make, [sh("make tset")], ["page.md:3: make has no target tset"]),
    (pages.unknown_make, [sh('make test ARGS="tests/gone.py --x"')], ["3: there is no tests/gone"]),
    (pages.unknown_make, [sh('make soak ARGS="--minutes 1 --gone"')], ["soak has no --gone"]),
    (pages.stale_readers, [{}, {"rmq x": "Makefile::f"}], ["line rmq x.", "no Makefile::f"]),
    (pages.stale_tables, [MAKES_AB, {"AFTER": ["one", "gone.md"]}], ["AFTER names gone.md"]),
    (
        pages.jobs_not_run,
        [{"": sh("rmq job a")}, ["rmq job b"], ["a", "b", "c"]],
        ["jobs/c.py: no"],
    ),
    (pages.jobs_not_run, [{"": page("```ruby\n```")}, [], []], ["md:2: nobody runs a"]),
    (pages.jobs_not_run, [{"": page("\n```sh\n")}, [], []], ["md:2: the block has"]),
    *(
        (pages.clashing_topics, [{**MAKES_AB, "two": sh(text)}], ["two:3: makes Ab as"])
        for text in (
            'broker.create("Ab", "FixedTime", slot_amount=16)',
            'broker.create("Ab", "Priority", 16)',
            "rmq create Ab --type FixedTime --slots 16",
            OPTIONS,
        )
    ),
    (pages.clashing_topics, [{**MAKES_AB, "two": sh(f"{MAKE} --slots 64")}], []),
    (pages.topics_of_the_tutorial, [{TUTORIAL: sh(MAKE), "two": sh("Ab")}], ["two:3: Ab"]),
    (pages.computed_slots, [sh("slot_of('a', 4)")], ["docs/page.md:3: computes a slot"]),
    (pages.names_of_queues, [page("\nthe DeadQueue")], ["docs/page.md:2: DeadQueue is defined in"]),
    (modules.upward_imports, code("topics/x", "\nimport rmq_spark.cli.y", "cli/y"), ["x.py:2: "]),
    (modules.upward_imports, code("spark/sink/x", FROM_SOURCE, "spark/source/y"), ["y."]),
    (modules.upward_imports, code("attic/x", ""), ["attic/x.py: stands in no room. Add"]),
    (
        modules.unknown_names,
        code("x", '"""Read send_at, a/b_c.py.\n\nGone_x, gone_y."""'),
        ["3: gone_y"],
    ),
    (
        modules.stale_guides,
        code("x/__init__", '"""Read y first: it is z. w, y and v\ndo. y does; u goes."""', "x/y"),
        ["1: w is no", "1: v is no", "1: u is no"],
    ),
    (modules.untested_scripts, [["claim", "gone"], ["test_claim"]], ["lua/test_gone.py"]),
    *((notebooks.unfit, notebook(output), [f"ipynb: one has {what}"]) for what, output in OUTPUTS),
    *((notebooks.unfit, notebook(**cell), [f"ipynb: {what}"]) for what, cell in CELLS),
    (notebooks.unfit, notebook(), []),
    (notebooks.ill_connected, notebook(source="1"), ["LocalRedis", "os.environ"]),
    (notebooks.ill_connected, ("x", new_notebook(cells=[CELL])), ["x.ipynb: links to no page"]),
    (ref.stale_tables, ours("`100ms` | a duration", "`1s` | a"), ["table is stale. Run"]),
    (ref.stale_tables, ours("generated: table", "generated: tabel"), ["nothing writes the table"]),
    (ref.stale_tables, changed("docs/commands.md", "`rmq purge`", "`rmq p`"), ["is stale. Run"]),
    (ref.wrongly_accepted, ours("`0` to `1000`", "`1` to `1001`"), ["1001 is ref", "0 is acc"]),
    (ref.wrongly_accepted, ours("`15s` | a duration", "`14s` | a duration"), ["`14s` is not"]),
    (ref.defaults_of_topics, ours("Amount` | `64` |", "Amount` | `32` |"), ["32 is wrong"]),
    (ref.settings_of_topics, ours("`64` | int", "`64` | str"), ["slot_amount: ('64', 's"]),
    (
        ref.settings_of_topics,
        ours("| `slotAmount` | `64`", "| `slots` | `64`"),
        ["no option slots"],
    ),
    (ref.columns, ours("`queue` | STRING", "`queues` | STRING"), ["lacks queue.", "no queues"]),
    (ref.columns, ours("| send, requeue | R", "| send | R"), ["timeRange:"]),
    (ref.classes_of_errors, ours("Option` | RmqError, V", "Option` | V"), ["Write RmqError, V"]),
    (ref.environment_variables, ours("| `JAVA_HOME`", "| `JAVA`"), ["JAVA_HOME.", "JAVA."]),
    (ref.public_names, changed("docs/python.md", "| `Relayed` |", ""), ["lacks Relayed, which is"]),
    (
        ref.scripts_of_the_protocol,
        protocol("`send_at`,", "`x`,"),
        ["The scripts' lacks send_at.", "no x."],
    ),
    (ref.queues_in_the_figure, [page("```mermaid\nstore prepare retry\n```")], ["dead"]),
    (ref.marks_in_the_figure, outbox("sent --> delivered", "new --> dead"), ["new to dead"]),
]


@pytest.mark.parametrize(("rule", "subjects", "expected"), CASES)
def test_a_rule_finds_what_it_is_for(rule, subjects, expected):
    found = applied(rule, *subjects)
    assert len(found) == len(expected), found
    assert [each for each in expected if not any(each in one for one in found)] == [], found


def test_every_rule_has_a_case():
    assert {rule for rule, _, expected in CASES if expected} == {*RULES}
