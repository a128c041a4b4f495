"""Figures, how they are told, and where they are kept: the same for every bench.

A figure is measured in several rounds; what is told is their median and their range. Beside it
stands a limit or a peer that was measured in turns with it, and the median of the rounds' ratios.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from rmq_spark.client import Broker
from rmq_spark.local.redis import LocalRedis

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("rmq-spark", "pyspark", "redis", "hiredis", "pyarrow", "numpy")

# How long each noted call held Redis, in ms, and its name: that of a script, or of a command.
Calls = list[tuple[float, str]]
# A Redis whose slow log holds all calls of a bench.
NOTING = {"appendonly": "no", "save": "", "slowlog-max-len": "1000000"}


@dataclass
class Figure:
    """One line of a table.

    rounds: one value a round, in ``unit``. beside: what the same round measured of the limit or
    peer named by ``against``; the ratio is value / beside, or beside / value where ``inverse``.
    at_least, at_most: the target for the ratio (for the value itself where nothing is beside).
    """

    name: str
    unit: str
    rounds: list[float]
    against: str = ""
    beside: list[float] = field(default_factory=list)
    inverse: bool = False
    at_least: float | None = None
    at_most: float | None = None

    def ratios(self) -> list[float]:
        """value / beside of each round, or the other way round."""
        pairs = zip(self.rounds, self.beside, strict=True) if self.beside else []
        return [other / own if self.inverse else own / other for own, other in pairs]

    def judged(self) -> float:
        """What the target is for."""
        return statistics.median(self.ratios() or self.rounds)

    def verdict(self) -> str:
        """The target and whether it is met; empty without one."""
        if self.at_least is not None:
            return f">= {self.at_least:g}: {'met' if self.judged() >= self.at_least else 'MISSED'}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}: {'met' if self.judged() <= self.at_most else 'MISSED'}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Everything measured, and what follows from it."""
        ratios = self.ratios()
        return {
            "name": self.name,
            "unit": self.unit,
            "median": statistics.median(self.rounds),
            "rounds": self.rounds,
            "against": self.against,
            "beside": self.beside,
            "ratio": statistics.median(ratios) if ratios else None,
            "ratios": ratios,
            "target": self.verdict(),
        }

    def to_row(self) -> list[str]:
        """The cells of its line in a table."""
        ratios = self.ratios()
        shown_ratio = f"{statistics.median(ratios):.2f} ({_range(ratios, '.2f')})" if ratios else ""
        return [
            self.name,
            f"{_number(statistics.median(self.rounds))} {self.unit} ({_range(self.rounds)})",
            f"{self.against}: {_number(statistics.median(self.beside))}" if self.beside else "",
            shown_ratio,
            self.verdict(),
        ]


@dataclass
class Report:
    """What one bench answers. question: a sentence; notes: what a reader of the table must know."""

    name: str
    question: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    load: str = field(default_factory=lambda: f"{os.getloadavg()[0]:.1f}")

    @staticmethod
    def of(name: str, docstring: str | None) -> "Report":
        """A report on the question that a bench's docstring begins with."""
        return Report(name, (docstring or "").split("\n")[0])

    def add(self, figure: Figure) -> None:
        """Adds a line and prints it."""
        self.figures.append(figure)
        print(" | ".join(cell for cell in figure.to_row() if cell), flush=True)

    def markdown(self, versions: dict[str, str]) -> str:
        """The report as a page."""
        return "\n".join(
            [
                f"# {self.name}",
                "",
                self.question,
                "",
                *_table(
                    ["figure", "median (lowest to highest)", "against", "ratio", "target"],
                    [figure.to_row() for figure in self.figures],
                ),
                *[f"\n{note}" for note in self.notes],
                "",
                ", ".join(f"{name}: {version}" for name, version in versions.items()),
                "",
            ]
        )

    def write(self, folder: Path, server: LocalRedis) -> None:
        """Writes name.json and name.md into the folder and prints where."""
        folder.mkdir(parents=True, exist_ok=True)
        with redis.Redis(port=server.port) as client:
            versions = machine() | {"redis-server": client.info("server")["redis_version"]}
        content = {
            "name": self.name,
            "question": self.question,
            "machine": versions | {"load before": self.load},
            "seconds": round(time.time() - self.started, 1),
            "figures": [figure.to_json() for figure in self.figures],
            "notes": self.notes,
        }
        (folder / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")
        (folder / f"{self.name}.md").write_text(self.markdown(content["machine"]))
        print(f"written: {folder / self.name}.md and .json")


def machine() -> dict[str, str]:
    """What it was measured on."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "system": platform.system() + " " + platform.release(),
        "python": platform.python_version(),
        "java": _java(),
    }
    return found | {name: importlib.metadata.version(name) for name in PACKAGES}


@contextmanager
def noting(broker: Broker, above_us: int = 0) -> Iterator[Calls]:
    """Let Redis' slow log note calls. The list has them when the body has ended.

    above_us: only longer ones. Redis also notes what scripts call, which takes time by itself.
    """
    client, calls = broker.server.client, Calls()
    client.config_set("slowlog-log-slower-than", above_us)
    client.slowlog_reset()
    yield calls
    client.config_set("slowlog-log-slower-than", -1)
    names = broker.server.script_names
    for one in client.slowlog_get(1_000_000):
        words = one["command"].decode("utf-8", "replace").split(" ", 2)
        if words[0] not in ("SLOWLOG", "CONFIG"):
            name = names.get(words[1], words[0]) if len(words) > 1 else words[0]
            calls.append((one["duration"] / 1000, name))


def at(ordered: list[float], part: float) -> float:
    """A quantile of values in order."""
    return ordered[int(part * (len(ordered) - 1))]


def arguments_of(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    """A parser with the options that every bench has, and whole numbers as options of its own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(
            f"--{name}", type=_positive, default=default, help=f"default: {default}"
        )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write into")
    parser.add_argument("--redis", help="redis-server to start; default: the one found on PATH")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def _range(values: list[float], form: str = "") -> str:
    low, high = min(values), max(values)
    return f"{low:{form}} to {high:{form}}" if form else f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _java() -> str:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    return told.split('"')[1] if '"' in told else "unknown"


def python_of_spark() -> None:
    """Makes Spark start its Python workers with this interpreter."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
