"""schedule, schedules, unschedule, scheduler, and listen --schedules."""

import re
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from rmq_spark.local.redis import free_port

from ..waiting import wait_until
from .running import started

HOUR_MS = 3_600_000


@pytest.fixture
def topic(rmq):
    rmq.broker.create("T", "FixedTime", 1)
    return rmq.broker.queue("T")


def test_a_schedule_is_made_listed_paused_and_removed(rmq, topic):
    made = rmq(
        *("schedule", "nightly", "T", "report", "--cron", "0 3 * * *", "--timezone"),
        *("Europe/Zurich", "--first", "2090-01-01T00:00:00Z", "--header", "a=b", "--delay", "5m"),
    )
    assert (made.code, made.err) == (0, "")
    assert "nightly: 0 3 * * * Europe/Zurich, from 2090-01-01T02:00:00.000Z on" in made.out
    [schedule] = rmq.broker.schedules()
    assert schedule.message.headers == (("a", b"b"),)
    assert schedule.message.delay == 300_000
    listed = rmq("schedules", "--json").json
    assert listed == [
        {
            "schedule": "nightly",
            "topic": "T",
            "rule": "0 3 * * * Europe/Zurich",
            "cron": "0 3 * * *",
            "timezone": "Europe/Zurich",
            "first": "2090-01-01T00:00:00.000Z",
            "catchUp": "one",
            "overlap": "send",
            "paused": False,
            "nextOccurrence": "2090-01-01T02:00:00.000Z",
            "lateMs": 0,
            "waits": False,
            "message": {
                "content": "report",
                "headers": [{"key": "a", "value": "b"}],
                "delay": 300_000,
            },
        }
    ]
    assert "paused" in rmq("schedules", "--pause", "nightly").out
    assert "paused" not in rmq("schedules", "--resume", "nightly").out
    assert rmq("unschedule", "nightly").out == "nightly: removed\n"
    assert rmq("unschedule", "nightly").code == 3
    assert rmq("schedules").out == "There are no schedules.\n"


@pytest.mark.parametrize(
    ("every", "shown"), [("10s", "10s"), ("90s", "90s"), ("120m", "2h"), ("1500ms", "1500ms")]
)
def test_an_interval_is_shown_as_a_person_writes_it(rmq, topic, every, shown):
    """Failed before: --every 10s was every 10000 ms."""
    made = rmq("schedule", "often", "T", "m", "--every", every)
    assert f"often: every {shown}, from 20" in made.out
    made = rmq("schedule", "often", "T", "m", "--every", every, "--json").json
    assert (made["topic"], made["rule"]) == ("T", f"every {shown}")
    assert f" every {shown} " in rmq("schedules").out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--every 1s --cron *", "Accepted: one of the two"),
        ("--every 1ms", "--every='1ms' is too short. Accepted: a duration, 1s to 36500d."),
        ("--every 5", "--every='5' is not a duration. Accepted: a number with its unit"),
        ("--every 1s --first soon", "--first"),
        ("--every 1s --priority 5", "--priority is not for topic T"),
        ("--every 1s --catch-up some", "catch_up='some'"),
        ("--every 1s --key k", "key is b'k', but the topic is not keyed"),
    ],
)
def test_what_is_not_accepted_is_said(rmq, topic, given, said):
    done = rmq("schedule", "s", "T", "m", *given.split())
    assert done.code == 2
    assert said in " ".join(done.err.split())


@pytest.mark.parametrize("given", ["unschedule", "schedules --pause", "schedules --resume"])
def test_a_schedule_that_is_not_there_is_nothing_found(rmq, topic, given):
    """Failed before: --pause and --resume called it a wrong option."""
    done = rmq(*given.split(), "nope")
    assert (done.code, "There is no schedule nope." in done.out + done.err) == (3, True)


def test_a_schedule_that_cannot_be_read_is_said_beside_the_others(rmq, topic):
    rmq.broker.schedule("s", "T", "m", every="1h")
    rmq.broker.server.command("HSET", f"{rmq.prefix}rmq_schedules", "bad", "{}")
    for given in ((), ("--pause", "s")):
        listed = rmq("schedules", "--json", *given)
        assert (listed.code, [one["schedule"] for one in listed.json]) == (0, ["s"])
        assert listed.err.count("The schedule bad in rmq_schedules cannot be read") == 1
    assert "unschedule bad" in rmq("schedules", "--pause", "bad").err


def test_a_scheduler_sends_until_it_is_stopped(rmq, topic):
    rmq.broker.schedule("s", "T", "m", every="1s")
    with started([*rmq.command(), "scheduler"], stderr=subprocess.PIPE) as process:
        wait_until(lambda: topic.figures().counters["accepted"] > 1, "occurrences")
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
        assert process.returncode == 0
    assert b"rmq: s at " in logged


def test_a_listener_may_send_them_too(rmq, topic, tmp_path):
    (tmp_path / "work.py").write_text("def call(message): print(message.content)")
    rmq.broker.schedule("s", "T", "m", every="1s")
    command = [*rmq.command(), "listen", "T", "work:call", "--name", "a", "--schedules"]
    with started(command, cwd=tmp_path) as process:
        wait_until(lambda: topic.figures().counters["committed"] > 1, "occurrences")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_listener_whose_scheduler_has_ended_is_not_healthy(rmq, topic, tmp_path):
    """Failed before: both probes answered ok, and nobody sent the messages of schedules."""
    (tmp_path / "work.py").write_text(
        "from rmq_spark.client.scheduler import Scheduler\n"
        "def fail(scheduler): raise ValueError('unforeseen')\n"
        "def call(message): Scheduler._round = fail\n"
    )
    rmq.broker.schedule("s", "T", "m", every="1s")
    command = [*rmq.command(), "listen", "T", "work:call", "--name", "a", "--schedules"]
    port = free_port()

    def answer(probe):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{probe}", timeout=60) as reply:
                return reply.read()
        except urllib.error.HTTPError as error:
            return error.read()
        except OSError:
            return b"not yet"

    with started([*command, "--metrics-port", str(port)], cwd=tmp_path):
        told = b"The scheduler has ended by an error.\n"
        for probe in ("healthz", "readyz"):
            wait_until(lambda probe=probe: answer(probe) == told, probe)


def test_doctor_says_that_nobody_runs_them(rmq, topic):
    schedule = rmq.broker.schedule("s", "T", "m", every="1h")
    found = {one["what"]: one for one in rmq("doctor", "--no-spark", "--json").json}
    assert (found["Schedules"]["state"], found["Schedules"]["seen"]) == ("ok", "schedules: 1")
    key = f"{rmq.prefix}schedules_{{{rmq.prefix}T_0}}"
    rmq.broker.server.command("HSET", key, "s", f"{schedule.since_ms} 0")
    text = schedule.to_json().replace(str(schedule.since_ms), str(schedule.since_ms - 2 * HOUR_MS))
    rmq.broker.server.command("HSET", f"{rmq.prefix}rmq_schedules", "s", text)
    rmq.broker.server.command("DEL", key)
    found = {one["what"]: one for one in rmq("doctor", "--no-spark", "--json").json}
    assert found["Schedules"]["state"] == "warn"
    assert re.fullmatch(r"s is late by (1h|36\d\ds|6\dm)", found["Schedules"]["seen"])
    assert "scheduler" in found["Schedules"]["remedy"]


def test_the_deletion_of_a_topic_names_its_schedules(rmq, topic):
    """Failed before: they were removed without a word."""
    rmq.broker.create("Other", "FixedTime", 1)
    for name, of_topic in (("a", "T"), ("b", "T"), ("c", "Other")):
        rmq.broker.schedule(name, of_topic, "m", every="1h")
    done = rmq("delete", "T", "--yes")
    assert done.out == "T: deleted, with 0 messages and 2 schedules (a, b)\n"
    assert [one.name for one in rmq.broker.schedules()] == ["c"]
