"""The table of rules, and what each is applied to. A rule yields complaints about its subjects."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import nbformat

from .. import ROOT
from ..docs import readers
from . import modules, notebooks, pages, reference, shapes, words
from .page import PAGES, Page, Unreadable

README = [(PAGES["README.md"],)]
REFERENCE = [(PAGES["docs/reference.md"],)]
CONTRIBUTING = Page.read("CONTRIBUTING.md")
PROSE = [(page,) for page in (*PAGES.values(), CONTRIBUTING, Page.read("CHANGELOG.md"))]
RESULTS = [f.relative_to(ROOT).as_posix() for f in ROOT.glob("bench/results/*.md")]
LINKING = [*PROSE, *((Page.read(name),) for name in RESULTS)]
ALL_PAGES = [(PAGES,)]
MODULES = modules.modules()
ALL_MODULES = [(MODULES,)]
NOTEBOOKS = [(f.stem, nbformat.read(f, as_version=4)) for f in notebooks.FOLDER.glob("*.ipynb")]
# Tables of tests/docs/readers.py by page.
OF_PAGES = ("AFTER", "BEFORE", "IN_A_CLONE", "INSTEAD", "PRINTED", "SERVERS", "VARYING")
DEMOS = {"demo", "cluster_demo"}  # tests/demo runs the one, people the other


def stems(pattern: str) -> set[str]:
    return {file.stem for file in ROOT.glob(pattern)}


Rule = Callable[..., Iterator[str]]
OF_A_PAGE: tuple[Rule, ...] = (
    *(words.banned_words, pages.unknown_extras, pages.unknown_make),
    *(pages.computed_slots, pages.names_of_queues),
)
OF_THE_REFERENCE: tuple[Rule, ...] = (
    *(reference.wrongly_accepted, reference.defaults_of_topics),
    *(reference.settings_of_topics, reference.columns, reference.classes_of_errors),
    reference.environment_variables,
)
# By rule, the arguments of each of its calls.
RULES: dict[Rule, Sequence[tuple[Any, ...]]] = {
    **dict.fromkeys(OF_A_PAGE, PROSE),
    **dict.fromkeys((pages.broken_links, pages.missing_files), LINKING),
    **dict.fromkeys((shapes.broken_tables, shapes.accidental_lists), LINKING),
    **dict.fromkeys((words.long_sentences, words.long_page), README),
    **dict.fromkeys((pages.clashing_topics, pages.topics_of_the_tutorial), ALL_PAGES),
    pages.unlinked_pages: [(PAGES["docs/README.md"],)],
    pages.unknown_classes: [(CONTRIBUTING,)],
    pages.stale_readers: [(PAGES, readers.ELSEWHERE)],
    pages.stale_tables: [(PAGES, {name: vars(readers)[name] for name in OF_PAGES})],
    pages.jobs_not_run: [(PAGES, readers.ELSEWHERE, stems("jobs/*.py") - DEMOS)],
    words.banned_in_code: [(module,) for module in MODULES.values()],
    **dict.fromkeys((modules.upward_imports, modules.unknown_names), ALL_MODULES),
    modules.stale_guides: ALL_MODULES,
    modules.untested_scripts: [(stems("lua/*.lua"), stems("tests/lua/*.py"))],
    **dict.fromkeys((notebooks.unfit, notebooks.ill_connected), NOTEBOOKS),
    **dict.fromkeys(OF_THE_REFERENCE, REFERENCE),
    reference.stale_tables: [(PAGES[f"docs/{name}"],) for name in reference.WRITTEN],
    reference.public_names: [(PAGES["docs/python.md"],)],
    reference.scripts_of_the_protocol: [(PAGES["docs/protocol.md"],)],
    reference.queues_in_the_figure: README,
    reference.marks_in_the_figure: [(PAGES["docs/outbox.md"],)],
}


def applied(rule: Rule, *subjects: object) -> list[str]:
    try:
        return list(rule(*subjects))
    except Unreadable as complaint:
        return [str(complaint)]


def complaints() -> list[str]:
    calls = ((rule, subjects) for rule, each in RULES.items() for subjects in each)
    # A page that no rule can read is a single complaint.
    return [*dict.fromkeys(text for rule, subjects in calls for text in applied(rule, *subjects))]
