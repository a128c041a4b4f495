"""Rules of the pages: links, files, commands and topics lead to what is there."""

import re
import shlex
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from rmq_spark.topics.definition import DEFAULT_SLOT_AMOUNT

from .. import ROOT
from ..docs.pages import program_of
from .modules import modules
from .page import NAMES, Page

Pages = dict[str, Page]
PROTOCOL = "docs/protocol.md"
READERS = "tests/docs/readers.py"
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A file of ours, in code: what users make in the course of a page has no folder of ours.
FILE = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|lua))`")
EXTRAS = re.compile(r"(?:rmq-spark|'\.)\[([a-z,]+)\]")
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


def linking(text: str) -> str:
    """A page without blocks and the brackets of its code; positions stay as they are."""
    text = re.sub(
        r"^ *```.*?^ *```$",
        lambda block: re.sub(r"[^\n]", " ", block[0]),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", " ", code[0]), text)


@cache
def anchors(text: str) -> set[str]:
    """What the headings of a page are called in links, as GitHub makes it."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.*?) *$", linking(text), re.MULTILINE):
        words = LINK.sub("", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def broken_links(page: Page) -> Iterator[str]:
    for match in LINK.finditer(linking(page.text)):
        path, _, anchor = match[1].partition("#")
        here = (ROOT / page.name).resolve()
        file = (here.parent / path).resolve() if path else here
        if re.match(r"[a-z]+:", match[1]):
            continue
        if file != here and not (file.exists() and file.is_relative_to(ROOT)):
            yield page.at(match.start(), f"{match[1]} leads to no file. Name one that is there")
        elif anchor:
            known = anchors(page.text if file == here else file.read_text(encoding="utf-8"))
            if anchor not in known:
                near = ", ".join(sorted(known))
                yield page.at(match.start(), f"{match[1]} leads to no heading. Write one of {near}")


def unlinked_pages(index: Page) -> Iterator[str]:
    linked = set(LINK.findall(linking(index.text)))
    for name in NAMES:
        if name.startswith("docs/") and name.removeprefix("docs/") not in {*linked, "README.md"}:
            yield f"{index.name}: does not link to {name}. Add it to the index"


def missing_files(page: Page) -> Iterator[str]:
    """A file is named as seen from the top, or from beside the page."""
    beside = (ROOT / page.name).parent
    for match in FILE.finditer(page.text):
        if not ((ROOT / match[1]).is_file() or (beside / match[1]).is_file()):
            yield page.at(match.start(), f"there is no file {match[1]}. Name one that is there")


@cache
def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["optional-dependencies"])


def unknown_extras(page: Page) -> Iterator[str]:
    for match in EXTRAS.finditer(page.text):
        for extra in set(match[1].split(",")) - {*extras()}:
            yield page.at(match.start(), f"there is no extra {extra}. Write one of {extras()}")


def unknown_classes(page: Page) -> Iterator[str]:
    there = set[str]().union(*(module.identifiers for module in modules().values()))
    for match in re.finditer(r"`((?:[A-Z][a-z]+)+)(?:\.\w+)?`", page.text):
        if match[1] not in there:
            yield page.at(match.start(), f"{match[1]} is not in the package. Name what is")


@cache
def programs_of_make() -> dict[str, str]:
    """By target, the sources of the programs that it starts; of pytest none."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = {}
    for target, recipe in re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)*)", makefile, re.MULTILINE):
        files = re.findall(r"/python ([\w/]+\.py)", recipe)
        for module in re.findall(r"/python -m (tests[\w.]+)", recipe):
            path = module.replace(".", "/")
            files.append(f"{path}/__main__.py" if (ROOT / path).is_dir() else f"{path}.py")
        found[target] = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    return found


def unknown_make(page: Page) -> Iterator[str]:
    """A line of make names a target, tests that are there, and options that its program has."""
    known = programs_of_make()
    for at, line in page.commands():
        if not line.startswith("make "):
            continue
        words = shlex.split(line)[1:]
        targets = [word for word in words if "=" not in word]
        for target in targets:
            if target not in known:
                yield f"{page.name}:{at}: make has no target {target}. See make help"
        for path in re.findall(r"\btests/[\w/.]+", line):
            if not (ROOT / path).exists():
                yield f"{page.name}:{at}: there is no {path}. Name tests that are there"
        source = "".join(known.get(target, "") for target in targets)
        for option in re.findall(r"(?<![\w-])--[a-z-]+", line) if source else ():
            if f'"{option}"' not in source:
                yield f"{page.name}:{at}: {' '.join(targets)} has no {option}. See its --help"


def stale_readers(pages: Pages, elsewhere: dict[str, str]) -> Iterator[str]:
    """What runs in another test stands on a page, and that test is there."""
    lines = {line for page in pages.values() for _, line in page.commands()}
    for line, place in elsewhere.items():
        file, _, function = place.partition("::")
        if line not in lines:
            yield f"{READERS}: no page has the line {line}. Remove it from ELSEWHERE"
        path = ROOT / file
        if not path.exists() or f"\ndef {function}(" not in path.read_text(encoding="utf-8"):
            yield f"{READERS}: there is no {place}. Name the test that runs {line}"


def stale_tables(pages: Pages, tables: dict[str, Collection[str]]) -> Iterator[str]:
    for table, names in tables.items():
        for name in sorted({*names} - {*pages}):
            yield f"{READERS}: {table} names {name}, which is no page. Remove it"


def jobs_not_run(pages: Pages, elsewhere: Iterable[str], jobs: Iterable[str]) -> Iterator[str]:
    """Every job runs on a page, or in the test that a page leaves it to."""
    programs = [*map(program_of, pages.values()), *elsewhere]
    run = {job for each in programs for job in re.findall(r"\bjob (\w+)", each)}
    for job in sorted({*jobs} - run):
        yield f"jobs/{job}.py: no page runs it. Write an example in docs/jobs.md"


def topics_made(text: str) -> dict[str, set[tuple[str, int]]]:
    """By name, the types and numbers of slots that a text makes a topic with."""
    found = defaultdict(set)
    for match in (match for pattern in MADE for match in re.finditer(pattern, text)):
        slots = SLOTS.search(match["rest"] or "")
        amount = int(slots[1]) if slots else DEFAULT_SLOT_AMOUNT
        found[match["name"]].add((match["type"], amount))
    return found


def clashing_topics(pages: Pages) -> Iterator[str]:
    """The pages can be followed on one Redis: a name means the same topic on all of them."""
    first: dict[str, tuple[str, tuple[str, int]]] = {}
    for name, page in pages.items():
        for block in page.blocks:
            for topic, definitions in topics_made(block.text).items():
                for definition in sorted(definitions):
                    place, earlier = first.setdefault(topic, (f"{name}:{block.line}", definition))
                    if definition != earlier:
                        yield (
                            f"{name}:{block.line}: makes {topic} as {definition}, but {place} as "
                            f"{earlier}. Write the same, or another name"
                        )


def topics_of_the_tutorial(pages: Pages) -> Iterator[str]:
    """The tutorial counts what its topics hold: no other page uses them."""
    blocks = pages["docs/tutorial.md"].blocks
    topics = {topic for block in blocks for topic in topics_made(block.text)}
    used = re.compile(rf"\b(?:{'|'.join(topics)})\b")
    for name, page in pages.items():
        for block in page.blocks if name != "docs/tutorial.md" else ():
            for topic in sorted(set(used.findall(block.text))):
                yield f"{name}:{block.line}: {topic} is a topic of the tutorial. Write another name"


def computed_slots(page: Page) -> Iterator[str]:
    for block in page.blocks:
        if "slot_of(" in block.text:
            yield f"{page.name}:{block.line}: computes a slot. Set a slot basis instead"


def names_of_queues(page: Page) -> Iterator[str]:
    """The names of the design are defined once, in docs/protocol.md."""
    defined = {"StoreQueue", "PrepareQueue", "DeadQueue"} if page.name == PROTOCOL else set()
    for match in re.finditer(r"\b(?:Store|Prepare|Retry|Dead)Queue\b", page.text):
        if match[0] in defined:
            defined.remove(match[0])
            continue
        yield page.at(match.start(), f"{match[0]} is defined in {PROTOCOL}. Write it in words")
