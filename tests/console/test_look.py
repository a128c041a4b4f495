"""What the stylesheet and the pages owe to people who see or steer differently."""

import re
from html.parser import HTMLParser
from importlib import resources

import pytest

CSS = resources.files("rmq_spark.console").joinpath("static/console.css").read_text("utf-8")
AA_TEXT, AA_GRAPHICS = 4.5, 3.0
GROUNDS = ("ground", "panel", "raised")
TEXTS = [
    *((text, ground) for text in ("text", "muted", "link") for ground in GROUNDS),
    *((name, f"{name}-ground") for name in ("good", "warn", "bad")),
    *(("bad", ground) for ground in ("panel", "raised")),
    ("on-accent", "accent"),
    ("on-bad", "bad"),
]
GRAPHICS = [
    *((colour, "panel") for colour in ("came", "went", "bad", "muted", "accent", "cell-4")),
    ("accent", "ground"),
]
PAGES = (
    *("/topics", "/topics/Orders", "/topics/Prices/messages", "/topics/Alerts/dead"),
    *(
        "/topics/Alerts/messages?queue=dead",
        "/consumers",
        "/schedules",
        "/server",
        "/jobs",
        "/login",
    ),
)


def colours(dark):
    """The custom properties, as the browser resolves them."""
    light, _, rest = CSS.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    assert len(found) > 20
    if dark:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rest))
    return found


def luminance(colour):
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_computed_as_wcag_does():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXTS)
def test_texts_have_the_contrast_of_wcag_aa(text, ground, dark):
    known = colours(dark)
    assert contrast(known[text], known[ground]) >= AA_TEXT


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("graphic", "ground"), GRAPHICS)
def test_lines_and_borders_have_the_contrast_of_wcag_aa(graphic, ground, dark):
    known = colours(dark)
    assert contrast(known[graphic], known[ground]) >= AA_GRAPHICS


def test_every_colour_of_the_sheet_is_one_of_those_compared():
    """A colour outside the list would escape the tests above."""
    rules = CSS.rpartition("--cell-4")[2]
    assert re.findall(r"#[0-9a-f]{3,8}\b", rules) == []


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.all = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))

    def named(self, *tags):
        return [attributes for tag, attributes in self.all if tag in tags]


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_names_headings_and_labels(new_site, stocked_prefix, path):
    page = Elements(new_site(stocked_prefix, allow_changes=True).page(path))
    assert page.named("html") == [{"lang": "en"}]
    assert len(page.named("h1")) == len(page.named("main")) == 1
    labelled = {label["for"] for label in page.named("label")}
    for field in page.named("input", "select", "textarea"):
        named = field.get("type") == "hidden" or "aria-label" in field
        assert named or field.get("id") in labelled, field
    ids = [attributes["id"] for _, attributes in page.all if "id" in attributes]
    assert len(ids) == len(set(ids))
    for cell in page.named("th"):
        assert cell["scope"] in ("col", "row")
    for nav in page.named("nav"):
        assert nav["aria-label"]
    for svg in page.named("svg"):
        assert svg["aria-hidden"] == "true"
