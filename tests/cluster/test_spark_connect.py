"""The same job, unchanged, in a Spark of its own and over Spark Connect."""

import json
import subprocess

import pytest

import rmq_spark
from rmq_spark.local.redis import LocalRedis

from .. import programs, quick_spark, servers


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("SPARK_REMOTE", marks=pytest.mark.long),
        pytest.param("SPARK_MASTER", marks=pytest.mark.rounds),
    ],
)
def test_a_job_runs_unchanged_over_spark_connect(tmp_path, way):
    with LocalRedis(settings=servers.SETTINGS) as redis:
        done = subprocess.run(
            programs.command("cluster.connect_job", redis.url, tmp_path),
            env=programs.environment(**{way: "local[2]", **quick_spark.java_variables()}),
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("told "))
        told = json.loads(line.removeprefix("told "))
        broker = rmq_spark.connect(redis.url)
        figures = {name: broker.queue(name).figures() for name in ("Each", "exactlyOnce")}
        sent = broker.queue("atLeastOnce").figures().store.count
        broker.close()
    assert ("connect" in told["session"]) == (way == "SPARK_REMOTE")
    failed = {name: told[name] for name in ("plain", "batches", "each", "exactlyOnce")}
    assert set(failed.values()) == {"None"}, failed
    assert (told["received"], told["stored"], sent) == (100, 100, 100)
    assert figures["exactlyOnce"].store.count == 100
    # The poison message is dead or waits; the others are done.
    assert figures["Each"].counters["committed"] == 99
    assert "Unknown option for the rmq sink: fixdtime. Did you mean fixedTime?" in told["refused"]
