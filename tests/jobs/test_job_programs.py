"""The jobs as programs: what they print, how they end, and what they do not show."""

import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException

from rmq_spark.client import connect
from rmq_spark.errors import InvalidOption, UnknownTopic
from rmq_spark.jobs import program
from rmq_spark.jobs.program import Job, JobFailed

from .. import ROOT, quick_spark

JOBS = ROOT / "jobs"
TRACE = 'Failed: Traceback (most recent call last):\n  File "x.py", line 1, in x\n'
ORDERS = ("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=2")


@pytest.fixture
def start(tmp_path, redis_of_jobs):
    """Starts a job in an empty folder, with the address of Redis in the environment."""

    def start(name, *arguments, by=(sys.executable,)):
        environment = {n: v for n, v in os.environ.items() if not n.startswith("RMQ_REDIS")}
        environment |= {"RMQ_REDIS_URL": redis_of_jobs.url, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= quick_spark.variables()
        environment.pop("PYSPARK_PYTHON", None)
        return subprocess.Popen(
            [*by, JOBS / f"{name}.py", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def run(start):
    def run(*arguments, **how):
        process = start(*arguments, **how)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    return run


@pytest.fixture
def shop(postgresql_server, monkeypatch):
    """The variables that name a database."""
    for name, value in postgresql_server.variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def orders(redis_of_jobs):
    """An empty topic Orders, gone in the end."""
    with closing(connect(redis_of_jobs.url)) as broker:
        broker.create("Orders", "FixedTime", slot_amount=2)
        yield broker.queue("Orders")
        broker.delete("Orders")


@pytest.mark.parametrize("name", program.MODULES)
def test_each_job_tells_how_it_is_used(name, run):
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: rmq job {name}")


def test_every_job_is_among_them():
    demos = {"demo", "cluster_demo"}
    assert {path.stem for path in JOBS.glob("*.py")} - demos == set(program.MODULES)


def test_an_outbox_begins_with_nothing_and_without_spark(run, orders, shop):
    code, out, err = run("relay_outbox", "--create-tables", "--once", *ORDERS)
    assert (code, out) == (0, "0 messages sent, 0 refused\n"), err
    assert "Spark" not in err


@pytest.mark.long
def test_the_console_shows_messages(run, orders, tmp_path):
    orders.send(["seen here"], fixed_time=0)
    arguments = ("--topic", "Orders", "--to", "console", "--once", "--checkpoint", "c")
    code, out, err = run("export", *arguments)
    assert code == 0, err
    assert "seen here" in out
    assert out.endswith("1 messages done, 0 of them refused\n")


def ended(process, number):
    """Asks it to end, and returns its log once it has."""
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, out + err
    return err


@pytest.mark.long
def test_an_export_that_is_asked_to_end_stops_its_query(start, orders, tmp_path):
    kept = ("--path", "out", "--checkpoint", "c")
    export = start("export", "--topic", "Orders", "--to", "parquet", *kept)
    orders.send(["first"], fixed_time=0)
    while orders.figures().counters["committed"] < 1:
        assert export.poll() is None, export.communicate()
        time.sleep(0.1)
    assert "Traceback" not in ended(export, signal.SIGTERM)


def test_a_relay_that_is_asked_to_end_finishes_its_round(start, orders, shop):
    relay = start("relay_outbox", "--create-tables", *ORDERS)
    for line in relay.stderr:
        if "relaying the outbox" in line:
            break
    assert "Traceback" not in ended(relay, signal.SIGINT)


@pytest.mark.long
def test_a_failure_is_one_line_without_secrets(run, orders):
    code, out, err = run(
        "requeue_dead", "--topic", "Orders", "-o", "redis.url=redis://u:sesame@[::1]:1"
    )
    last = err.strip().splitlines()[-1]
    assert (code, out) == (1, "")
    assert last.startswith("requeue_dead: Redis at redis://")
    assert "sesame" not in err


@pytest.mark.long
def test_the_master_that_is_submitted_is_the_one(run, orders, tmp_path):
    (tmp_path / "a.csv").write_text("a\n")
    python = f"spark.pyspark.python={sys.executable}"
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    submit = (spark_submit, "--conf", python, "--master", "local[few]")
    csv = ("--from", "csv", "--path", "a.csv", "--select", "_c0 AS content, 1 AS fixedTime")
    code, out, err = run("send", *csv, "--topic", "Orders", by=submit)
    assert code == 1, out
    assert "Could not parse Master URL: 'local[few]'" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "sesame"], "-o is not accepted"),
        (["--path", "s3a://me:sesame@bucket"], "arguments: --path s3a://***@bucket"),
    ],
)
def test_a_refused_argument_does_not_show_a_password(run, arguments, told):
    code, out, err = run("expire", *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "sesame" not in err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (InvalidOption("topic='No/Such'"), 2, "topic='No/Such'"),
        (UnknownTopic("no NoSuch"), 2, "no NoSuch"),
        (JobFailed("no such table"), 1, "no such table"),
        # As it comes from one of Spark's Python processes, and from Spark itself.
        (PySparkException(f"{TRACE}rmq_spark.errors.InvalidMessage: Row 3"), 2, "Row 3"),
        (PySparkException(f"{TRACE}rmq_spark.errors.ServerFull: full"), 1, "full"),
        (PySparkException("[PATH_NOT_FOUND] no x\n'Project"), 1, "[PATH_NOT_FOUND] no x"),
        (PySparkException("no s3a://me:sesame@bucket"), 1, "no s3a://***@bucket"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_how_a_job_ended_is_its_exit_code(error, code, told, capsys):
    def work(_):
        raise error

    job = Job("a_job", "It fails.", lambda _: None, work, needs_spark=False)
    assert program.run(job, Namespace()) == code
    assert capsys.readouterr().err == ("" if told is None else f"a_job: {told}\n")


@pytest.mark.parametrize("name", program.MODULES)
def test_the_help_shows_defaults_and_what_is_required(name):
    (names,) = [one for one in program.new_parser()._actions if one.choices]
    for action in names.choices[name]._actions:
        if action.required:
            assert "(required)" in action.help, action.dest
        elif action.option_strings and action.default not in (None, False, {}, "==SUPPRESS=="):
            assert "(default: " in action.help, action.dest
    assert "Exit codes: 0 done" in names.choices[name].format_help()


@pytest.mark.parametrize("way", [("-m", "rmq_spark.cli", "job", "expire"), ("jobs/expire.py",)])
def test_both_ways_to_start_a_job_run_it(way, orders, redis_of_jobs):
    def start(*arguments):
        return subprocess.run(
            [sys.executable, *way, *arguments],
            cwd=ROOT,
            env={**os.environ, "RMQ_REDIS_URL": redis_of_jobs.url},
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = start("--topics", "Orders")
    assert (done.returncode, done.stdout) == (0, "Orders: 0 messages given back\n"), done
    misused = start("--nonsense")
    assert (misused.returncode, misused.stdout) == (2, "")
    assert misused.stderr.startswith("usage: rmq job")


def test_jobs_without_spark_start_none(run, orders):
    code, out, err = run("expire")
    assert (code, out, err) == (0, "Orders: 0 messages given back\n", "")


# What the extra spark installs is there in a test, so its import is made to fail.
WITHOUT_SPARK = """
import sys
sys.modules.update(dict.fromkeys(("pyspark", "py4j", "pyarrow", "numpy", "pandas")))
from rmq_spark.jobs.program import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_spark(url, *arguments):
    command = [sys.executable, "-c", WITHOUT_SPARK, *arguments]
    environment = {**os.environ, "RMQ_REDIS_URL": url}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_expire_runs_where_spark_is_not_installed(orders, redis_of_jobs):
    done = run_without_spark(redis_of_jobs.url, "expire", "--topics", "Orders")
    assert (done.returncode, done.stdout) == (0, "Orders: 0 messages given back\n"), done.stderr


def test_an_outbox_is_relayed_where_spark_is_not_installed(orders, redis_of_jobs, shop):
    arguments = ("--create-tables", "--once", "--table", "bare_outbox", *ORDERS)
    done = run_without_spark(redis_of_jobs.url, "relay_outbox", *arguments)
    expected = "0 messages sent, 0 refused\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize("name", ["send", "export", "requeue_dead", "report"])
def test_a_job_that_needs_spark_says_so(redis_of_jobs, name):
    done = run_without_spark(redis_of_jobs.url, name, "--topic", "Orders", "--once")
    assert done.returncode == 2
    assert re.search(rf"the job {name} needs \w+: pip install 'rmq-spark\[spark\]'", done.stderr)


def test_the_list_of_jobs_needs_no_spark(redis_of_jobs):
    done = run_without_spark(redis_of_jobs.url, "--help")
    assert done.returncode == 0, done.stderr
    assert "Relay messages from the outbox" in done.stdout
    assert done.stdout.count("Not installed") == 4
