"""The demo from end to end, and how it fails."""

import pytest
import redis

from jobs.flights.progress import WAITING
from rmq_spark.local.redis import LocalRedis

FLIGHTS = 3000
# The first test also waits for the demo.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server():
    with LocalRedis() as server:
        yield server


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """A folder where a former run has left files that would not be read as Parquet."""
    folder = tmp_path_factory.mktemp("demo") / "out put"
    (folder / "rebooking.parquet" / "_spark_metadata").mkdir(parents=True)
    (folder / "rebooking.parquet" / "_spark_metadata" / "0").write_text("of a former run")
    return folder


@pytest.fixture(scope="module")
def done(demo, server, output):
    return demo("--flights", str(FLIGHTS), "--output", output, "--redis-url", server.url)


def test_it_ends_well(done):
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All as in the input" in done.stdout


def test_it_says_nothing_but_its_own_words(done):
    assert done.stderr == ""
    assert "WARN" not in done.stdout


def test_its_table_counts_every_flight(done):
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line[:1].isalpha()}
    for topic, kind in (("Departures", "FixedTime"), ("Rebooking", "Priority")):
        cells = lines[topic].split("  ")
        assert [cell.strip() for cell in cells if cell][:7] == [
            *(topic, kind, "3 000", "0", "3 000", "0", "0")
        ]
    assert "2 996" in lines["Replanning"]  # 4 of the first 3000 flights have no tail number


def test_it_shows_progress(done):
    lines = done.stdout.splitlines()
    shown = [line for line in lines if " s |" in line]
    assert shown
    assert [line for line in shown if set(line.partition("|")[2]) <= set(" |0")] == []
    assert lines.count(WAITING) == 1


def test_it_draws_a_picture(done, output):
    assert (output / "lateness.png").read_bytes().startswith(b"\x89PNG")
    assert str(output / "lateness.png") in done.stdout.splitlines()[-1]


def test_it_leaves_nothing_in_a_redis_that_was_named(done, server):
    with redis.Redis(port=server.port) as client:
        assert client.keys() == []


def test_files_that_it_did_not_write_are_left_alone(demo, tmp_path):
    (tmp_path / "departures.parquet").write_text("mine")
    refused = demo("--output", tmp_path)
    assert refused.returncode == 1
    assert "departures.parquet exists and is not from a demo" in refused.stderr
    assert (tmp_path / "departures.parquet").read_text() == "mine"


def test_without_its_redis_it_says_so_in_a_line(demo, tmp_path):
    failed = demo("--output", tmp_path, "--redis-url", "redis://user:secret@127.0.0.1:1/0")
    assert failed.returncode == 1
    assert failed.stderr.startswith("The demo failed: Redis at redis://127.0.0.1:1/0 cannot be")
    assert "secret" not in failed.stdout + failed.stderr
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize("amount", ["0", "-1", "many"])
def test_a_bad_number_of_flights_is_refused(demo, amount):
    refused = demo(f"--flights={amount}")
    assert refused.returncode == 2
    assert f"'{amount}' is no number of flights; 1 or more" in refused.stderr
