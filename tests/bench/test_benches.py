"""The benches run, and tell what they measured as it is. How fast it is, no test says."""

import json
import os
import shutil
import subprocess
import sys

import measuring
import pytest
import run_all
import stalled_commands
from measuring import Figure, Report
from stalled_commands import ELSEWHERE

from rmq_spark.cli import app

from .. import ROOT, missing, quick_spark

BENCH = ROOT / "bench"
COMMANDS = {name for group in app.COMMANDS.values() for name in group}


def run(name, *arguments, **more):
    command = [sys.executable, str(BENCH / f"{name}.py"), *arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **more}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=environment, check=False
    )


@pytest.mark.parametrize("name", run_all.ALL)
def test_every_bench_begins_with_its_question_and_has_help(name):
    told = run(name, "--help")
    assert told.returncode == 0, told.stderr
    question = (BENCH / f"{name}.py").read_text().split("\n")[0].strip('"')
    assert question.endswith("?")
    assert question in told.stdout
    assert f"| `{name}.py` | {question}" in (BENCH / "README.md").read_text().replace(
        "`each_message` cost", "each_message cost"
    ).replace("plain `foreachBatch`", "plain foreachBatch")


def test_a_bench_writes_its_figures_with_machine_and_versions(tmp_path):
    done = run("backlog", "--messages=100000", "--claims=10", "--rounds=2", f"--results={tmp_path}")
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "backlog.json").read_text())
    assert {"cores", "processor", "python", "redis-server", "pyspark"} <= set(told["machine"])
    claims = {figure["name"]: figure for figure in told["figures"]}
    assert len(claims["claim p99, 100,000 stored in order"]["rounds"]) == 2
    page = (tmp_path / "backlog.md").read_text()
    for name in claims:
        assert f"| {name} |" in page


@pytest.mark.long(every=5)
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("latency", ["--seconds=1", "--warmup=2"]),
        ("receive", ["--messages=3000"]),
        ("each_message", ["--messages=500"]),
        ("burst", ["--messages=2000", "--queries=1"]),
        ("fairness", ["--messages=2000"]),
        ("planning_scale", ["--slots=256", "--topics=32"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "small",
)
def test_a_bench_with_spark_runs_from_anywhere(tmp_path, name, size):
    """Spark's workers find none of the modules beside it."""
    more = quick_spark.java_variables()
    done = run(name, *size, "--rounds=1", f"--results={tmp_path}", **more)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / f"{name}.json").read_text())["figures"]


@pytest.mark.rounds
def test_a_large_backlog_is_compared_with_a_small_one_and_survives_restarts(tmp_path):
    """The bench itself ends where a message is missing after a restart."""
    size = ["--messages=300000", "--claims=10", "--rounds=1"]
    done = run("hundred_million", *size, f"--results={tmp_path}", **quick_spark.java_variables())
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "hundred_million.json").read_text())
    names = [figure["name"] for figure in told["figures"]]
    assert sum(name.startswith("send, up to") for name in names) == 10
    compared = [figure for figure in told["figures"] if figure["against"] == "100,000 stored"]
    assert {figure["name"].split(",")[0] for figure in compared} >= {"claim p99", "figures"}
    assert "append-only file: from the start to the first claim" in names
    assert "snapshot: from the start to the first claim" in names


def test_a_backlog_that_memory_cannot_hold_is_refused():
    told = run("backlog", "--messages=999999999999")
    assert told.returncode == 1
    assert "--messages 999999999999 needs some" in told.stderr
    assert "Accepted here: up to" in told.stderr


@pytest.mark.rounds
def test_every_script_and_command_is_measured_for_its_stalls(tmp_path):
    """The bench itself ends where a script was not called, or a command failed."""
    size = ["--messages=130000", "--rounds=1"]
    done = run("stalls", *size, f"--results={tmp_path}", **quick_spark.java_variables())
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "stalls.json").read_text())
    names = {figure["name"].split(" (")[0] for figure in told["figures"]}
    scripts = {f"script {file.stem}" for file in (ROOT / "lua").glob("*.lua")}
    assert names >= scripts | {f"rmq {name}" for name in COMMANDS - ELSEWHERE.keys()}


def test_no_command_is_missing_from_the_stalls():
    measured = stalled_commands.Commands(None, "").all(0).keys()
    assert measured | ELSEWHERE.keys() == COMMANDS
    assert not measured & ELSEWHERE.keys()


def need_maven():
    if not shutil.which("mvn"):
        missing.do_without("Maven, which gets jars", "apt-get install maven")


@pytest.mark.rounds
def test_a_bench_has_a_kafka_of_its_own(tmp_path):
    """Beside Spark's connector; all messages come through both, or the bench ends."""
    need_maven()
    size = ["--messages=2000", "--seconds=1", "--warmup=1", "--rounds=1"]
    more = quick_spark.java_variables()
    done = run("beside_kafka", *size, f"--results={tmp_path}", **more)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "beside_kafka.json").read_text())
    beside = [figure["name"] for figure in told["figures"] if figure["against"] == "Kafka"]
    assert beside[:4] == [
        *("df.write", "df.writeStream", "source to noop", "source, a function for each row")
    ]
    assert all(figure["median"] > 0 for figure in told["figures"] if figure["against"])
    assert "kafka_2.13 4." in (tmp_path / "beside_kafka.md").read_text()


@pytest.mark.rounds
def test_a_bench_compares_with_a_share_group(tmp_path):
    """And with RocketMQ, where its client is installed. Each message must come."""
    need_maven()
    size = ["--messages=1000", "--seconds=1", "--rounds=1"]
    done = run("brokers", *size, f"--results={tmp_path}")
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "brokers.json").read_text())
    found = [figure for figure in told["figures"] if figure["against"] == "Kafka, share group"]
    names = [figure["name"] for figure in found]
    assert names == ["send", "receive", "pickup p50", "pickup p99"]
    assert all(figure["beside"][0] > 0 for figure in found)


def test_a_ratio_is_that_of_each_round_and_its_median_is_judged():
    figure = Figure(
        "speed", "messages/s", [90.0, 40.0, 80.0], "limit", [100.0, 80.0, 80.0], at_least=0.9
    )
    assert figure.ratios() == [0.9, 0.5, 1.0]
    assert figure.judged() == 0.9
    assert figure.verdict() == ">= 0.9: met"
    figure.at_least = 0.91
    assert figure.verdict() == ">= 0.91: MISSED"


def test_a_figure_without_a_limit_is_judged_by_itself():
    figure = Figure("CPU", "% of a core", [2.0, 4.0, 3.5], at_most=3)
    assert figure.ratios() == []
    assert figure.verdict() == "<= 3: MISSED"
    assert Figure("CPU", "%", [2.0], at_most=3).verdict() == "<= 3: met"
    assert Figure("CPU", "%", [2.0]).verdict() == ""


def test_a_row_shows_median_range_limit_and_ratio():
    figure = Figure("send", "messages/s", [900.0, 1000.0, 2000.0], "limit", [1000.0] * 3)
    assert figure.to_row() == [
        "send",
        "1,000 messages/s (900 to 2,000)",
        "limit: 1,000",
        "1.00 (0.90 to 2.00)",
        "",
    ]


def test_an_unknown_bench_is_named():
    told = run("run_all", "sned")
    assert told.returncode == 2
    assert "there is no bench 'sned'. Accepted: send, receive" in told.stderr


def test_options_need_the_name_of_a_bench():
    told = run("run_all", "--messages", "5")
    assert told.returncode == 2
    assert "--messages is an option of a bench: name the bench before it" in told.stderr


def test_options_are_passed_on_to_the_bench(monkeypatch, tmp_path):
    monkeypatch.setattr(run_all, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_all.py", "backlog", "--messages", "0"])
    assert run_all.main() == 1  # the bench refuses it


def test_the_pages_are_joined_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "RESULTS", tmp_path)
    for name in ("receive", "send"):
        (tmp_path / f"{name}.md").write_text(f"# {name}\n")
    run_all.write_page()
    page = (tmp_path / "README.md").read_text()
    assert page.index("## send") < page.index("## receive")


def test_a_report_takes_its_question_from_the_docstring():
    assert Report.of("x", "How fast?\n\nMore.").question == "How fast?"
    assert measuring.RESULTS == BENCH / "results"
