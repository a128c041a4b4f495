"""The pages can be followed on one Redis: the name of a topic means the same on all of them."""

import json
import re
from collections import defaultdict

import pytest

from rmq_spark.topics.definition import DEFAULT_SLOT_AMOUNT

from .pages import NAMES, ROOT, blocks_of

# What a page writes where it makes a topic: the name, the type, and what follows.
MADE = (
    r"""\.create\(\s*"(?P<name>[\w.]+)",\s*"(?P<type>\w+)"(?P<rest>[^)]*)""",
    r"""rmq create (?P<name>[\w.]+) --type (?P<type>\w+)(?P<rest>[^\n]*)""",
    r"""sink\([^\n]*"(?P<name>\w+)", topicType="(?P<type>\w+)"(?P<rest>[^)]*)""",
    r"""--topic (?P<name>\w+) -o topicType=(?P<type>\w+)(?P<rest>[^\n]*)""",
    r"""option\("topic", "(?P<name>\w+)"\)\s*\.option\("topicType", "(?P<type>\w+)"\)"""
    r"""(?P<rest>[^\n]*\s*\.option\("slotAmount"[^\n]*)?""",
)
SLOTS = re.compile(r"""(?:slot_amount=|--slots |slotAmount=|slotAmount", |^, )(\d+)""")


def definitions_in(text):
    """By name, the types and numbers of slots that a text makes a topic with."""
    found = defaultdict(set)
    for pattern in MADE:
        for match in re.finditer(pattern, text):
            slots = SLOTS.search(match["rest"] or "")
            amount = int(slots[1]) if slots else DEFAULT_SLOT_AMOUNT
            found[match["name"]].add((match["type"], amount))
    return found


def test_no_page_computes_a_slot_where_a_slot_basis_is_enough():
    blocks = [(page, block) for page in NAMES for block in blocks_of(page)]
    assert [page for page, block in blocks if "slot_of(" in block.text] == []


def test_a_name_means_the_same_topic_on_all_pages():
    made = defaultdict(dict)
    for page in NAMES:
        for block in blocks_of(page):
            for name, definitions in definitions_in(block.text).items():
                made[name].setdefault(page, set()).update(definitions)
    assert len(made) > 10
    clashes = {
        name: by_page for name, by_page in made.items() if len(set.union(*by_page.values())) > 1
    }
    assert clashes == {}


def test_the_tutorial_counts_on_topics_that_no_other_page_has():
    of_tutorial = {
        name for block in blocks_of("docs/tutorial.md") for name in definitions_in(block.text)
    }
    assert len(of_tutorial) == 3
    others = [name for name in NAMES if name != "docs/tutorial.md"]
    texts = " ".join(block.text for page in others for block in blocks_of(page))
    assert [name for name in of_tutorial if re.search(rf"\b{name}\b", texts)] == []


@pytest.mark.parametrize("file", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda f: f.stem)
def test_a_notebook_has_a_redis_of_its_own(file):
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert "LocalRedis().start()" in code
    assert 'os.environ["RMQ_REDIS_URL"] = redis.url' in code


@pytest.mark.parametrize(
    "text",
    [
        'broker.create("A.b", "FixedTime", slot_amount=16)',
        'broker.create("A.b", "FixedTime", 16)',
        "rmq create A.b --type FixedTime --slots 16",
    ],
)
def test_a_definition_is_found(text):
    assert definitions_in(text) == {"A.b": {("FixedTime", 16)}}


def test_a_definition_in_options_is_found():
    text = """.option("topic", "Orders")
    .option("topicType", "FixedTime")  # the first use
    .option("slotAmount", 16)"""
    assert definitions_in(text) == {"Orders": {("FixedTime", 16)}}
    assert definitions_in(text.rpartition(".option")[0]) == {"Orders": {("FixedTime", 64)}}
