"""rmq listen: a service that is nothing but a function."""

import itertools
import os
import pty
import signal
import subprocess
import urllib.request

import pytest

from rmq_spark.cli import listen
from rmq_spark.client.service import Service

from ..logs import logged
from ..waiting import wait_until
from .running import started

SHOP = """
import asyncio, logging, os, time

def bill(message):
    if message.content == b"bad":
        raise ValueError("no such customer")
    logging.getLogger("shop").info("billed %s in %d", message.content.decode(), os.getpid())

async def bill_later(message):
    bill(message)

class Billing:
    bill = staticmethod(bill)

async def bill_slowly(message):
    bill(message)
    await asyncio.to_thread(time.sleep, 3600)

number = 7
"""
MARKED = """
import logging
import rmq_spark

@rmq_spark.listener("Orders", workers=1)
def bill(message):
    logging.getLogger("shop").info("billed %s", message.content.decode())

@rmq_spark.listener("Orders", group="mail", workers=1)
async def mail(message):
    logging.getLogger("shop").info("mailed %s", message.content.decode())
"""


@pytest.fixture
def shop(tmp_path):
    """A folder with a module, in which the command runs."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def orders(rmq):
    return rmq.topic("Orders", max_retries=0)


@pytest.fixture
def listening(rmq, shop, orders):
    """Start the command. Returns the process and a function that reads its log."""
    log = shop / "log"

    def start(*words, function="shop:bill", name="billing"):
        line = [*rmq.command(), "listen", "Orders", function, "--name", name, *words]
        return started(line, cwd=shop, stderr=log.open("w"), env=environment())

    return start, log.read_text


def environment():
    return {**os.environ, "PYTHONPATH": os.getcwd()}


def run(rmq, shop, *words, before=()):
    """Run the command to its end. before: options that come before its name."""
    return subprocess.run(
        [*rmq.command(), *before, "listen", *words],
        cwd=shop,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("function", ["shop:bill", "shop:bill_later", "shop:Billing.bill"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_function_is_called_until_a_signal_comes(listening, orders, function, number):
    start, log = listening
    with start(function=function) as process:
        orders.send(["a", "b"], fixed_time=1000)
        wait_until(lambda: "billed a" in log() and "billed b" in log(), "both messages")
        process.send_signal(number)
        assert process.wait(60) == 0
    assert "rmq: listening to Orders as billing" in log()
    assert log().rstrip().endswith("stopped")
    assert orders.figures().prepare.count == 0


def test_a_thread_of_an_async_function_does_not_outlast_the_grace(listening, orders):
    """Failed before: the program had stopped, but its process waited for the thread."""
    start, log = listening
    with start("--grace", "100ms", function="shop:bill_slowly") as process:
        orders.send(["a"], fixed_time=1000)
        wait_until(lambda: "billed a" in log(), "the message")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "configured",
    [
        'logging.basicConfig(format="MINE %(message)s", level="INFO")',
        'logging.config.dictConfig({"version": 1, "root": {"level": "INFO", "handlers": ["h"]}, '
        '"formatters": {"f": {"format": "MINE %(message)s"}}, '
        '"handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f"}}})',
    ],
)
def test_a_module_can_configure_the_logs(rmq, shop, orders, configured):
    """Failed before: the first had no effect, and the second silenced all that is not its own."""
    (shop / "mine.py").write_text(
        f"import logging.config\n{configured}\n"
        'logging.getLogger("rmq_spark").setLevel("DEBUG")\n'
        "def bill(message):\n    raise ValueError('no such customer')\n"
    )
    orders.send(["a"], fixed_time=1000)
    log = shop / "log"
    line = [*rmq.command(), "listen", "Orders", "mine:bill", "--name", "mine"]
    with started(line, cwd=shop, stderr=log.open("w"), env=environment()):
        wait_until(lambda: "died: ValueError: no such customer" in log.read_text(), "the log")
    lines = log.read_text().splitlines()
    assert any(line.startswith("MINE rmq: listening to Orders as mine") for line in lines)
    assert any(line.startswith("Traceback") for line in lines)
    assert not any(" INFO " in line for line in lines)


def test_a_function_that_raises_is_logged_and_its_message_dies(listening, orders):
    start, log = listening
    with start():
        orders.send(["bad"], fixed_time=1000)
        wait_until(lambda: orders.figures().dead.count == 1, "its death")
        wait_until(lambda: "died: ValueError: no such customer" in log(), "the log")


def test_processes_do_the_work(listening, orders):
    start, log = listening
    with start("--processes", "--workers", "1") as process:
        orders.send(["a"], fixed_time=1000)
        wait_until(lambda: "billed a" in log() or orders.figures().counters["committed"], "it")
        assert f"in {process.pid}" not in log()
        process.terminate()
        assert process.wait(60) == 0


def test_metrics_are_served(listening, orders):
    start, log = listening
    with start("--metrics-port", "0"):
        orders.send(["a", "bad"], fixed_time=1000)
        wait_until(lambda: "billed a" in log() and " died: " in log(), "both messages")
        address = log().partition("metrics at ")[2].split()[0]

        def told():
            with urllib.request.urlopen(address, timeout=60) as reply:
                return reply.read().decode()

        labels = 'function="shop.bill",group="default",listener="billing"'
        for outcome in ("succeeded", "failed"):
            line = f'rmq_listener_messages_total{{{labels},outcome="{outcome}",topic="Orders"}} 1.0'
            wait_until(lambda line=line: line in told(), line)
        assert f'rmq_listener_workers_at_work{{{labels},topic="Orders"}} 0.0' in told()
        for of in ("duration", "lateness"):
            assert f'rmq_listener_{of}_seconds_count{{{labels},topic="Orders"}} 2.0' in told()
            last = labels.replace(",listener", ',le="+Inf",listener')
            assert f'rmq_listener_{of}_seconds_bucket{{{last},topic="Orders"}} 2.0' in told()
        for probe in ("healthz", "readyz"):
            with urllib.request.urlopen(address.replace("metrics", probe), timeout=60) as reply:
                assert reply.read() == b"ok\n"


def test_modules_run_all_that_they_mark(rmq, shop):
    orders = rmq.topic("Orders", groups=["default", "mail"])
    (shop / "marked.py").write_text(MARKED)
    log = shop / "log"
    words = ["listen", "marked", "marked", "--name", "all", "--workers", "1"]
    with started(
        [*rmq.command(), *words], cwd=shop, stderr=log.open("w"), env=environment()
    ) as process:
        orders.send(["a"], fixed_time=1000)
        wait_until(lambda: {"billed a", "mailed a"} <= set(words_of(log)), "both functions")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize("ends", [os.pipe, pty.openpty])
def test_a_log_that_nobody_reads_keeps_no_message_and_no_end_waiting(rmq, shop, ends):
    queue = rmq.topic("Orders", slots=4, max_retries=0)
    (shop / "failing.py").write_text(f"def fail(message): raise ValueError('x' * {1 << 10})")
    words = ["listen", "Orders", "failing:fail", "--name", "failing"]
    command = [*rmq.command(), *words]
    reader, writer = ends()
    with started(command, cwd=shop, stderr=writer, env=environment()) as process:
        queue.send([f"{number}" for number in range(200)], fixed_time=1000)
        wait_until(lambda: queue.figures().dead.count == 200, "all")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    for end in (reader, writer):
        os.close(end)


def words_of(log):
    return [line.partition("shop: ")[2] for line in log.read_text().splitlines()]


def test_what_modules_mark_has_its_settings_there(rmq, shop, orders):
    (shop / "marked.py").write_text(MARKED)
    done = run(rmq, shop, "marked", "--name=a", "--timeout=5s")
    assert done.returncode == 2
    assert "--timeout is for a topic and its function." in done.stderr
    assert "@rmq_spark.listener(..., timeout=...)" in done.stderr
    done = run(rmq, shop, "shop:bill", "--name=a")
    assert done.returncode == 2
    assert "FUNCTION='shop:bill' has no topic." in done.stderr
    done = run(rmq, shop, "shop", "--name=a")
    assert done.returncode == 2
    assert "The module shop has no function that is marked" in done.stderr


def test_a_line_tells_the_rates(orders, rmq, monkeypatch, caplog):
    monkeypatch.setattr(listen, "REPORT_EVERY_S", 0.05)
    caplog.set_level("INFO", "rmq_spark.listen")
    with rmq.broker.listen("Orders", "billing", lambda message: None) as listener:
        orders.send(["a", "b"], fixed_time=1000)
        wait_until(lambda: listener.succeeded == 2, "both messages")
        with listen._reports(Service([listener])):
            text = "0 succeeded (0.0/s), 0 failed, 0 snoozed; 0 of 8 workers at work"
            wait_until(lambda: text in logged(caplog), "a line of an idle minute")
    assert "2 succeeded (" in logged(caplog)


def test_a_second_start_ends_the_first(listening, orders):
    start, log = listening
    with start() as first:
        wait_until(lambda: "listening" in log(), "the first")
        with start():
            wait_until(lambda: "listening" in log(), "the second")
            numbers = itertools.count()

            def first_ends():
                orders.send([f"{next(numbers)}"], fixed_time=1000)
                return first.poll() is not None

            wait_until(first_ends, "the end of the first, which meets a newer run")
        assert first.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_changed_file_starts_it_again(listening, orders, shop, number):
    start, log = listening
    with start("--reload") as process:
        orders.send(["a"], fixed_time=1000)
        wait_until(lambda: "billed a" in log(), "the first message")
        (shop / "shop.py").write_text(SHOP.replace("billed", "charged"))
        orders.send(["b"], fixed_time=1000)
        wait_until(lambda: "charged b" in log() or "billed b" in log(), "the second message")
        orders.send(["c"], fixed_time=1000)
        wait_until(lambda: log().count("listening to") == 2, "the second start")
        process.send_signal(number)
        assert process.wait(60) == 0  # failed before: 130 after SIGTERM
    assert log().rstrip().endswith("stopped")


def test_a_killed_reload_stops_what_it_runs(listening, orders):
    """Failed before: the function went on alone, and started again at no change."""
    start, log = listening
    with start("--reload") as process:
        orders.send(["a"], fixed_time=1000)
        wait_until(lambda: "billed a" in log(), "the message")
        process.kill()
        wait_until(lambda: log().rstrip().endswith("stopped"), "the end of the listener in it")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("shop", "FUNCTION='Orders': there is no module Orders in "),
        ("shop:", "FUNCTION='shop:' is not accepted. Accepted: TOPIC module:function, such as"),
        ("shop:nope", "the module shop has no nope."),
        ("shopp:bill", "there is no module shopp in "),
        ("shop.more:bill", "there is no module shop.more in "),
        ("shop:number", "listen got a int. Accepted: a function of one argument"),
    ],
)
def test_what_is_no_function_is_misuse(rmq, shop, orders, function, told):
    done = run(rmq, shop, "Orders", function, "--name", "a")
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        "--timeout=x",
        "--delay=x",
        "--grace=5",
        "--visibility-timeout=0s",
        "--zookeeper=x+y",
        "--group=nope",
        "--name=a/b",
        "--workers=0",
    ],
)
def test_a_bad_option_is_misuse_and_named(rmq, shop, orders, option):
    done = run(rmq, shop, "Orders", "shop:bill", "--name=a", option)
    assert done.returncode == 2
    name, value = option.split("=")
    assert name in done.stderr or value in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_that_is_not_there_is_named(rmq, shop, orders):
    done = run(rmq, shop, "Nope", "shop:bill", "--name=a")
    assert done.returncode == 2
    assert "The topic Nope does not exist" in done.stderr


def test_an_error_of_the_module_itself_is_shown_with_its_place(rmq, shop, orders):
    (shop / "broken.py").write_text("import no_such_package\n")
    done = run(rmq, shop, "Orders", "broken:bill", "--name", "a")
    assert done.returncode == 2
    assert "broken.py" in done.stderr
    assert "importlib" not in done.stderr
    assert "No module named 'no_such_package'" in done.stderr


def test_a_secret_of_zookeeper_is_not_shown(rmq, shop, orders):
    secret = ("-o", "zookeeper.password=Zk4-word")
    words = ["Orders", "shop:bill", "--name=a", "--zookeeper=127.0.0.1:1"]
    done = run(rmq, shop, *words, before=secret)
    assert done.returncode == 2
    assert "zookeeper.username" in done.stderr
    assert "Zk4-word" not in done.stderr
