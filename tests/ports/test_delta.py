"""Delta Lake as a target and a source; and what is told where Spark cannot reach it."""

import re
import subprocess
import sys

import pyspark
import pytest

from .. import ROOT, programs, quick_spark
from ..jobs.trade import order
from . import delta_spark


def test_the_page_names_the_release_and_the_settings_of_the_tests():
    page = (ROOT / "docs/jobs.md").read_text(encoding="utf-8")
    pom = delta_spark.POM.read_text(encoding="utf-8")
    group, artifact, version = re.search(r"packages=(io\.delta:\S+)", page)[1].split(":")
    for tag, value in {"groupId": group, "artifactId": artifact, "version": version}.items():
        assert f"<{tag}>{value}</{tag}>" in pom
    for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog"):
        assert f"--conf {name}={delta_spark.SETTINGS[name]}" in page


@pytest.mark.rounds
@pytest.mark.timeout(900)
def test_all_checks_pass_on_a_spark_that_delta_supports():
    delta_spark.connector()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/ports/delta_checks.py"],
        cwd=ROOT,
        env=programs.environment(**delta_spark.variables()),
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stdout[-9000:]


def test_without_its_connector_it_is_told_how_to_load_it(trade):
    trade.orders([order(1)])
    arguments = ("--checkpoint", trade.folder / "checkpoint", "--path", trade.folder / "orders")
    told = r"packages=io\.delta:delta-spark_4\.[012]_2\.13:\S+ .*sql\.extensions=.*spark_catalog="
    with pytest.raises(Exception, match=told):
        trade.export("--to", "delta", *arguments)
    with pytest.raises(Exception, match=told):
        trade.job("send", "--from", "delta", "--path", trade.folder / "orders", "--topic", "Orders")


@pytest.mark.parametrize("place", [(), ("--path", "a", "--table", "b")])
def test_it_needs_a_path_or_a_table(trade, place):
    with pytest.raises(Exception, match=r"either --path, .* or --table"):
        trade.export("--to", "delta", "--checkpoint", trade.folder / "checkpoint", *place)


@pytest.mark.long
@pytest.mark.skipif(
    pyspark.__version__.startswith("4.2."), reason="Delta's connector is for this Spark"
)
def test_a_connector_for_another_spark_is_told_before_anything_is_written(trade, redis_of_ports):
    trade.orders([order(1)])
    command = [
        sys.executable,
        "-m",
        "rmq_spark.cli",
        "job",
        "export",
        "--topic",
        "Orders",
        "--once",
    ]
    place = ["--to", "delta", "--path", str(trade.folder / "orders"), "--checkpoint", "checkpoint"]
    done = subprocess.run(
        [*command, *trade.redis, *place, *delta_spark.options()],
        cwd=trade.folder,
        env=programs.environment(**quick_spark.variables()),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1
    (told,) = (line for line in done.stderr.splitlines() if line.startswith("export: "))
    assert "delta-spark_4.2_2.13-4.4.0.jar is built for Spark 4.2, but this is Spark 4." in told
    assert "pip install 'pyspark==4.2.*'" in told
    assert not (trade.folder / "orders").exists()
