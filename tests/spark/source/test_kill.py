"""A task that fails, and a driver that is killed in the middle of a batch."""

import json
import os
import signal
import subprocess

import pytest

from rmq_spark.protocol import reading

from ... import programs
from ...waiting import wait_until
from ..driving import names, send_due


@pytest.mark.long
def test_a_task_that_fails_once_and_a_driver_killed_mid_batch_end_with_each_message_once(
    spark, rmq
):
    """One program for both, as each driver takes seconds to start."""
    flaky, killed = rmq.due(50), rmq.due(30)
    given = {
        "folder": str(rmq.folder),
        "options": rmq.options(
            killed, visibilityTimeout="10min", **{"redis.clientName": "to-be-killed"}
        ),
        "flaky": flaky.definition.name,
        "killed": killed.definition.name,
    }
    with subprocess.Popen(
        programs.command("spark.source.kill_program", json.dumps(given)),
        env=programs.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        try:
            assert driver.stdout.readline() == "flaky done\n"
            jvm = int(driver.stdout.readline())
            send_due(killed, range(30, 60))
            driver.stdin.write("go on\n")
            driver.stdin.flush()
            wait_until((rmq.folder / "hangs").exists, "a task to be in the middle of a batch")
            os.kill(jvm, signal.SIGKILL)
        finally:
            driver.kill()
    (rmq.folder / "go").touch()
    client = killed.server.client
    wait_until(
        lambda: all(each["name"] != "to-be-killed" for each in client.client_list()),
        "what the driver had started to end",
    )

    assert (rmq.folder / "failed").exists()
    assert rmq.contents(spark, "-flaky") == names(50)
    assert flaky.figures().counters["rolledBack"] == 0

    in_work = killed.figures().prepare.count
    assert 0 < in_work <= 20
    # Nobody else gets it: the same checkpoint may yet be started again within the lease.
    assert (
        sum(slot.due for slot in killed.ask(reading.due, killed.slots, "another")) == 30 - in_work
    )
    send_due(killed, range(60, 70))
    frame = rmq.read(spark, killed, maxRecordsPerTrigger=20, visibilityTimeout="10min")
    rmq.drain(frame.select("content"), "-killed")
    assert rmq.contents(spark, "-killed") == names(70)
    figures = killed.figures()
    assert (figures.store.count, figures.prepare.count, figures.dead.count) == (0, 0, 0)
