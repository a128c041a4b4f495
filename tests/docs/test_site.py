"""The site of the documentation is whole, can be searched, and loads nothing from elsewhere."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from .. import ROOT

# What a browser loads by itself. (Links that a reader follows may lead elsewhere.)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc="([^"]*)|<link\b[^>]*?\shref="([^"]*)"""
    r"""|url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)"""
)


# What the section of a class, method or function shows.
SHOWN = {
    "rmq_spark.Broker.create": "topic_type: TopicType | str",
    "rmq_spark.Broker.listen": 'visibility_timeout: Duration = "60s"',
    "rmq_spark.Delivered": "delivery_count: int",
    "rmq_spark.aio.AsyncQueue.send": "fixed_time: int | datetime | None = None",
    "rmq_spark.each_message": "spark.readStream",
}


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def section(page: Path, anchor: str) -> str:
    """The text from a heading to the next one."""
    text = page.read_text(encoding="utf-8").partition(f'id="{anchor}"')[2]
    return unescape(re.sub(r"<[^>]+>", "", re.split(r"<h[1-6]\b", text)[0]))


def test_it_is_whole_can_be_searched_and_loads_nothing_from_another_host(site):
    """In one test: each process that runs some of several would build a site."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"] for entry in index["docs"]}
    assert {
        "docs/consume/",
        "docs/python/#rmq_spark.Broker.create",
        "docs/commands/#rmq-send",
        "notebooks/quickstart/",
        "CHANGELOG/",
    } <= found
    for anchor, shown in SHOWN.items():
        assert shown in section(site / "docs/python/index.html", anchor)
    command = section(site / "docs/commands/index.html", "rmq-send")
    assert "rmq send [OPTIONS]" in command
    assert "--slot-basis" in command
    files = [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]
    loaded = {
        (file.name, next(filter(None, each)))
        for file in files
        for each in LOADED.findall(file.read_text(encoding="utf-8"))
    }
    assert len(loaded) > len(files)
    assert {one for one in loaded if re.match(r"(?:[a-z]+:)?//", one[1])} == set()
