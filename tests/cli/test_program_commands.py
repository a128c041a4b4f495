"""What runs longer or looks further: top, doctor, local, metrics; and what no command survives."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import redis

import rmq_spark
import rmq_spark.cli.doctor as doctor_module
from rmq_spark.cli import programs
from rmq_spark.inspect.fields import time_text
from rmq_spark.inspect.prometheus import dashboard_json
from rmq_spark.local.redis import free_port
from rmq_spark.local.zookeeper import LocalEnsemble
from rmq_spark.ownership.nodes import new_client

from ..servers import NOBODYS_PORT
from .running import COMMAND, started

HOUR_MS = 3_600_000
ALL = (
    "topics create alter delete pause resume hold show lower-epochs send consume listen peek dead "
    "schedule schedules unschedule scheduler due cancel requeue purge expire top doctor local "
    "metrics job"
)


def test_the_help_names_all_commands_and_exit_codes(rmq):
    told = rmq("--help").out
    assert [name for name in ALL.split() if f"  {name} " not in told] == []
    assert "3 nothing matched" in " ".join(told.split())
    titles = ["Topics:", "Messages:", "Schedules:", "Operation:"]
    assert [line for line in told.splitlines() if line in titles] == titles
    assert "..." not in told.replace("[ARGS]...", "")  # each first sentence fits a line
    assert rmq("--version").out == f"rmq-spark {rmq_spark.__version__}\n"


@pytest.mark.parametrize("name", ALL.split())
def test_every_command_has_help(rmq, name):
    told = rmq(name, "--help")
    assert (told.code, f"usage: rmq {name} " in " ".join(told.out.lower().split())) == (0, True)


@pytest.mark.parametrize(
    "command",
    [
        *("topics", "show T", "create T --type Priority", "alter T --retries 1", "delete T --yes"),
        *("pause T", "resume T", "hold T 1s", "peek T", "send T m", "cancel T m", "requeue T m"),
        *("purge T m --yes", "expire T", "top --times 1", "consume T", "due T", "dead T"),
    ],
)
def test_a_redis_that_is_down_is_a_line_and_not_a_trace(rmq, command):
    done = rmq(*command.split(), url=f"redis://u:Zk4-word@127.0.0.1:{NOBODYS_PORT}")
    assert done.code == 1
    first, last = done.err.splitlines()
    assert re.fullmatch(
        r"rmq: retrying Redis at redis://127.0.0.1:\d+ for up to 2 s: ConnectionError", first
    )
    assert last.startswith("rmq: Redis at redis://127.0.0.1:")
    assert "cannot be reached" in last
    for remedy in ("redis.url", "RMQ_REDIS_URL", "rmq local"):
        assert remedy in last
    assert "Zk4-word" not in done.err


def test_an_unknown_command_or_option_is_misuse(rmq):
    assert rmq("pek").code == 2
    assert rmq("peek").code == 2
    assert rmq("-o", "redis.password", "topics").code == 2
    assert "hunter2" not in rmq("-o", "redis.password:hunter2", "topics").err
    secret = rmq("-o", "password=Zk4-word", "topics")
    assert (secret.code, "Zk4-word" in secret.err) == (2, False)


def test_other_options_of_the_connection_are_passed_on(rmq):
    refused = rmq("-o", "redis.sentinelMaster=m", "topics")
    assert (refused.code, "needs redis.sentinels" in refused.err) == (2, True)
    assert rmq("-o", "redis.clientName=looker", "topics").code == 0


def test_a_job_gets_the_options_of_the_connection_and_its_own(rmq):
    rmq.topic()
    done = rmq("job", "expire", "--topics", "Ord.*")
    assert (done.code, done.out) == (0, "Orders: 0 messages given back\n"), done.err
    # Failed before: the job refused the options of zookeeper, which it does not need.
    assert rmq("-o", "zookeeper.hosts=h:1", "job", "expire", "--topics", "Ord.*") == done
    assert rmq("job", "expire", "--help").out.startswith("usage: rmq job expire ")
    assert "Accepted: send, relay_outbox, export" in rmq("job").err
    for wrong in (["job"], ["job", "expires"], ["job", "expire", "--topic", "("]):
        assert rmq(*wrong).code == 2


def test_top_tells_rates_and_consumers(rmq):
    queue = rmq.topic()
    queue.send(["a", "b"], fixed_time=99)
    rmq.broker.consumer("Orders", "clerk").poll(1)
    (row,) = rmq("top", "Orders", "--times", "1", "--json").json
    assert (row["due"], row["prepared"], row["inPerSecond"]) == (1, 1, None)
    assert {*row["consumers"][0]} == {"consumer", "seenMsAgo"}
    assert row["consumers"][0]["consumer"] == "clerk"
    assert 0 <= row["oldestDueForMs"] < HOUR_MS
    assert rmq("top", "Orders", "--times", "1").out.rstrip().endswith(" clerk")
    rmq.broker.alter("Orders", exclusive=True)
    (row,) = rmq("top", "Orders", "--times", "1", "--json").json
    assert row["consumers"][0]["slots"] == 4
    assert "clerk (4 slots)" in rmq("top", "Orders", "--times", "1").out


@pytest.mark.parametrize("time", ["0", "1970-01-01T00:00:01Z", "2000-01-01T00:00Z"])
def test_a_message_with_a_time_long_past_is_late_only_since_it_was_sent(rmq, time):
    before = rmq.topic().now_ms()
    rmq("send", "Orders", "a", "--fixed-time", time)
    (row,) = rmq("top", "Orders", "--times", "1", "--json").json
    assert 0 <= row["oldestDueForMs"] < HOUR_MS
    (group,) = rmq("show", "Orders", "--json").json["groups"]
    assert time_text(before) <= group["queues"][0]["dueTime"] <= time_text(before + HOUR_MS)


def test_top_shows_what_came_between_two_looks(rmq):
    queue = rmq.topic()
    command = [*rmq.command(), "top", "--times", "2", "--interval", "2s", "--json"]
    with started(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        queue.send([f"m{n}" for n in range(100)], fixed_time=99)
        (row,) = json.loads(process.stdout.readline())
        process.wait(timeout=60)
    assert 0 < row["inPerSecond"] <= 100
    assert row["due"] == 100


def test_top_without_a_terminal_prints_table_after_table_without_escapes(rmq):
    name = "a-topic-with-quite-a-long-name-that-is-not-cut-off-anywhere-at-all-in-a-pipe"
    rmq.topic(name)
    out = rmq("top", "--times", "2", "--interval", "100ms").out
    assert "\x1b" not in out
    assert out.count(name) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_on_a_terminal_redraws_until_it_is_ended(rmq, number):
    """Failed before: SIGTERM left the terminal on the other screen."""
    rmq.topic()
    terminal, other = pty.openpty()
    command = [*rmq.command(), "top", "--interval", "100ms"]
    with started(command, stdout=other, stdin=other, stderr=other) as process:
        os.close(other)
        shown = b""
        while shown.count(b"Orders") < 3:
            shown += os.read(terminal, 65536)
        process.send_signal(number)
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:
            pass  # Linux says so when the other end is closed
        assert process.wait(timeout=60) == 128 + number
    assert b"\x1b[?1049l" in shown  # the screen as it was before
    os.close(terminal)


def test_a_question_is_asked_on_a_terminal_and_no_is_an_answer(rmq):
    rmq.topic()
    terminal, other = pty.openpty()
    command = [*rmq.command(), "delete", "Orders"]
    with started(command, stdout=other, stdin=other, stderr=other) as process:
        os.close(other)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 65536)
        os.write(terminal, b"n\n")
        assert process.wait(timeout=60) == 1
    os.close(terminal)
    assert rmq.broker.find("Orders")


def test_doctor_looks_at_everything(rmq, zookeeper, own_redis):
    done = rmq(
        *("doctor", "--zookeeper", zookeeper.hosts, "--json"),
        url=own_redis.url,
        PYSPARK_PYTHON=sys.executable,
    )
    found = {finding["what"]: finding for finding in done.json}
    assert {name: f["state"] for name, f in found.items()} == {
        "Redis": "ok",
        "Redis policy": "ok",
        "Redis on disk": "warn",
        "Redis memory": "warn",
        "Redis user": "ok",
        "Claims": "ok",
        "ZooKeeper": "ok",
        "Java": "ok",
        "PYSPARK_PYTHON": "ok",
        "Spark": "ok",
    }
    with rmq_spark.connect(own_redis.url).server.client as client:
        for name in ("Redis on disk", "Redis memory"):
            # Failed before: a setting that ended with Redis looked like one that lasts.
            command, note = found[name]["remedy"].removeprefix("redis-cli -u ").split("  # ")
            assert note == "then CONFIG REWRITE, or the same in redis.conf, for its next start"
            where, *words = command.split()
            assert own_redis.url.startswith(where)
            assert client.execute_command(*words)
    assert "finds the format rmq" in found["Spark"]["seen"]
    assert done.code == 0


def test_doctor_names_a_remedy_for_what_is_wrong(rmq, own_redis):
    own_redis_url = own_redis.url
    with rmq_spark.connect(own_redis_url).server.client as client:
        client.execute_command(
            *["ACL", "SETUSER", "looker", "on", "nopass", "~*", "+@all", "-zadd", "-zrank"]
        )
        client.config_set("maxmemory", "2mb")
    done = rmq(
        *("doctor", "--zookeeper", f"127.0.0.1:{NOBODYS_PORT}", "--json"),
        url=own_redis_url.replace("redis://", "redis://looker:x@"),
        PYSPARK_PYTHON="/no/such/python",
        JAVA_HOME="/no/such/java",
    )
    found = {finding["what"]: finding for finding in done.json}
    assert done.code == 1
    for name in ("Redis user", "ZooKeeper", "Java", "PYSPARK_PYTHON", "Spark"):
        assert found[name]["state"] == "FAIL", name
        assert found[name]["remedy"]
    assert "SETUSER looker +zadd +zrank" in found["Redis user"]["remedy"]
    assert sys.executable in found["PYSPARK_PYTHON"]["remedy"]
    assert "%" in found["Redis memory"]["seen"]


@pytest.mark.long
def test_doctor_names_the_error_of_spark_and_not_the_end_of_its_trace(rmq):
    """Failed before: it said "... 23 more"."""
    done = rmq.begin("doctor", "--json", PYSPARK_PYTHON="/no/such/python")
    (found,) = (one for one in done.json if one["what"] == "Spark")
    assert found["state"] == "FAIL"
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: rmq" in found["seen"]


def test_doctor_uses_the_options_of_zookeeper(rmq, zookeeper):
    """Failed before: it asked without them, so one with TLS or a user seemed not to answer."""
    hosts, user, word = f"hosts={zookeeper.hosts}", "username=u", "password=Zk-word"
    for named, state in (
        ((hosts, user, word), "ok"),
        ((hosts, user), "FAIL"),
        ((user, word), "FAIL"),
    ):
        options = [word for one in named for word in ("-o", f"zookeeper.{one}")]
        done = rmq(*options, "doctor", "--no-spark", "--json")
        found = {one["what"]: one for one in done.json}["ZooKeeper"]
        assert (found["state"], "Zk-word" in done.out) == (state, False)


def test_doctor_says_that_zookeeper_answered_also_if_it_ends_then(monkeypatch):
    """Failed before: it asked once more, and ended with a traceback, or waited for ever."""
    with LocalEnsemble() as own:

        def connected(options):
            client = new_client(options)
            own.servers[0].kill()
            return client

        monkeypatch.setattr("rmq_spark.ownership.nodes.new_client", connected)
        assert doctor_module.check_zookeeper({"hosts": own.hosts}).state == "ok"


@pytest.mark.parametrize("said", ["", "\\377"])
def test_doctor_refuses_a_program_that_is_no_python(monkeypatch, tmp_path, said):
    """Failed before: it ended with a traceback."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PYSPARK_PYTHON", str(program))
    found = doctor_module.check_python()
    assert (found.state, found.seen) == ("FAIL", f"{program} does not run or has no rmq-spark")


def test_doctor_counts_the_replicas_that_sends_wait_for(rmq, own_redis):
    """Failed before: all was well, while every send failed with NotReplicated."""
    asked = ("-o", "redis.minReplicas=1", "doctor", "--no-spark", "--json")
    found = {finding["what"]: finding for finding in rmq(*asked, url=own_redis.url).json}
    assert found["Redis replicas"]["state"] == "FAIL"
    assert "0 of the 1" in found["Redis replicas"]["seen"]


def test_doctor_goes_on_without_redis(rmq):
    done = rmq("doctor", "--no-spark", url=f"redis://127.0.0.1:{NOBODYS_PORT}", JAVA_HOME="/none")
    assert done.code == 1
    assert re.search(r"^FAIL +Redis +Redis at .* cannot be reached", done.out, re.M)
    assert done.out.count("rmq local") == 1
    assert (
        "Run rmq local in another terminal and paste the line that it prints; or start" in done.out
    )
    assert re.search(r"^skip +Spark +not checked, nor its Java and Python", done.out, re.M)
    assert done.out.count("FAIL") == 1


def test_doctor_finds_a_server_that_evicts(rmq, own_redis):
    with rmq_spark.connect(own_redis.url).server.client as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    done = rmq("doctor", "--no-spark", "--json", url=own_redis.url)
    (redis_finding,) = [f for f in done.json if f["what"] == "Redis"]
    assert (redis_finding["state"], "allkeys-lru" in redis_finding["seen"]) == ("FAIL", True)
    command = redis_finding["remedy"].partition("  # ")[0]
    assert re.fullmatch(r"redis-cli -u redis://\S+ CONFIG SET maxmemory-policy noeviction", command)
    with redis.Redis.from_url(command.split()[2]) as client:
        client.execute_command(*command.split()[3:])
    assert rmq("topics", url=own_redis.url).code == 0


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (
            ["-o", "redis.username=nobody", "-o", "redis.password=wrong"],
            "as in redis://user:password@host:6379",
        ),
        (["-o", "redis.socketTimeout=soon"], "Correct --redis-url, RMQ_REDIS_URL or --option"),
        (["--redis-cluster"], "Leave out --redis-cluster"),
    ],
)
def test_doctor_says_what_to_do_about_each_refusal(rmq, arguments, remedy):
    done = rmq(*arguments, "doctor", "--no-spark", "--json")
    (found,) = [finding for finding in done.json if finding["what"].startswith("Redis")]
    assert (done.code, found["state"], remedy in found["remedy"]) == (1, "FAIL", True)


def test_a_format_that_spark_does_not_find_is_told(monkeypatch):
    monkeypatch.setattr(doctor_module, "_FIND_FORMAT", "raise SystemExit('no such format')")
    found = doctor_module.check_format()
    assert (found.state, found.seen) == ("FAIL", "no such format")


def test_top_shows_a_limit_that_is_over_before_anybody_looks(rmq):
    """Failed before: of a fast rate, notes was empty, as if nothing kept messages back."""
    queue = rmq.topic(rate="1000/s", burst=1000)
    queue.send(["a"], fixed_time=99)
    with rmq.broker.consumer("Orders", "a") as consumer:
        consumer.poll().commit()
        queue.send(["b"], fixed_time=99)
        assert rmq("top", "-n", "1").out.rstrip().endswith(" at most 1000/s")


def test_top_shows_what_keeps_messages_back(rmq):
    rmq.topic().send(["a"], fixed_time=99)
    assert rmq("top", "-n", "1").out.rstrip().endswith(" nobody reads")
    rmq.broker.pause("Orders", group="default")  # failed before: not shown, unlike another group's
    assert rmq("top", "-n", "1").out.rstrip().endswith(" paused")
    rmq.broker.resume("Orders", group="default")
    rmq.broker.hold("Orders", "1h")
    held = rmq("top", "-n", "1").out
    assert ("held until 20" in held, "nobody reads" in held) == (True, False)
    rmq.broker.pause("Orders")
    (row,) = rmq("top", "-n", "1", "--json").json
    assert row["warnings"][0] == "paused"


def test_a_local_redis_lives_until_it_is_ended():
    port = free_port()
    command = [*COMMAND, "local", "--json", "--port", str(port)]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        url = json.loads(process.stdout.readline())["RMQ_REDIS_URL"]
        assert url == f"redis://127.0.0.1:{port}/0"
        broker = rmq_spark.connect(url)
        broker.create("T", "Priority")
        broker.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    with pytest.raises(rmq_spark.RmqError):
        rmq_spark.connect(url, patience_s=0.1)


def test_a_local_redis_is_where_programs_look_for_it_if_that_place_is_free(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(programs, "USUAL_PORT", port)
        assert programs._free_port(None) is None
        with pytest.raises(rmq_spark.InvalidOption, match=f"Cannot listen on 127.0.0.1:{port} "):
            programs._free_port(port)
    assert programs._free_port(None) == port


def test_figures_are_served_until_it_is_ended(rmq):
    rmq.topic().send(["a", "b"], fixed_time=99)
    command = [*rmq.command(), "metrics", "--port", "0"]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert 'rmq_messages{group="default",queue="store",topic="Orders"} 2.0' in text
    assert "rmq_up 1.0" in text


def test_a_port_that_is_taken_is_told(rmq, own_redis):
    done = rmq("metrics", "--port", str(own_redis.port))
    assert (done.code, "Cannot listen on" in done.err) == (2, True)


def test_the_dashboard_is_printed(rmq):
    assert json.loads(rmq("metrics", "--dashboard").out) == json.loads(dashboard_json())


def test_figures_are_served_without_redis_too():
    url = f"redis://127.0.0.1:{NOBODYS_PORT}"
    command = [*COMMAND, "--redis-url", url, "metrics", "--port", "0"]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        with urllib.request.urlopen(process.stdout.readline().strip()) as answer:
            text = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert "rmq_up 0.0" in text


@pytest.mark.parametrize("redirected", [">&-", "<&-", ">/dev/full"])
def test_a_stdin_or_stdout_that_is_none_is_no_trace(rmq, redirected):
    rmq.topic().send(["m"], fixed_time=99)
    name = "send Orders --fixed-time 0" if redirected == "<&-" else "peek Orders"
    line = f"{' '.join(rmq.command())} {name} {redirected}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "full" in redirected else 0)
    assert ("No space left" in done.stderr) == ("full" in redirected)
