"""Texts of others on a terminal, in a pipe, in a log: none changes how the rest is shown."""

import os
import subprocess
import sys

import pytest

from ..waiting import wait_until
from .running import bury, on_a_terminal, started

# Renames and clears a terminal, begins a line, and turns the direction of what follows.
EVIL = "\x1b]0;renamed\x07\x1b[2J\x9b31m\rfaked\nline\u2028\u202etxt.exe\x7f"
ESCAPED = r"\x1b]0;renamed\x07\x1b[2J\x9b31m\rfaked\nline\u2028\u202etxt.exe\x7f"
SHOP = f"""
def bill(message):
    raise ValueError({EVIL!r})
"""


def is_plain(text):
    """Whether a text has line ends, but no other character that is more than itself."""
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def dead(rmq):
    """A queue whose dead message has a consumer and a reason that passed no check."""
    queue = rmq.topic("Orders", slots=1)
    bury(queue, b"m")
    reason = EVIL.encode()
    death = b"%s %d %s" % (EVIL.replace(" ", "").encode(), len(reason), reason)
    queue.server.client.hset(queue.keys.deaths(0), "m", death)
    queue.server.client.hset(queue.keys.stats(0), f"dead:{EVIL}", 1)
    queue.server.client.hset(queue.keys.consumers(0), EVIL, f"1 0 0 0 {queue.now_ms()} - -")
    return queue


@pytest.mark.parametrize("command", ["dead Orders", "peek Orders --queue dead", "show Orders"])
def test_a_pipe_gets_them_escaped(rmq, dead, command):
    done = rmq(*command.split())
    assert is_plain(done.out)
    assert ESCAPED in done.out
    as_json = rmq(*command.split(), "--json")
    assert is_plain(as_json.out)
    assert EVIL in strings_of(as_json.json)


def strings_of(value):
    """All texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.items():
            yield from strings_of(list(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings_of(each)


@pytest.mark.parametrize("command", ["dead Orders", "peek Orders --queue dead", "top --times 1"])
def test_a_terminal_gets_them_escaped(rmq, dead, command):
    shown = on_a_terminal([*rmq.command(), *command.split()])
    for evil in (b"\x1b]", b"\x07", b"\x1b[2J", "\x9b".encode(), "\u202e".encode(), b"\x7f"):
        assert evil not in shown, evil


def test_headers_reach_no_terminal_raw(rmq):
    queue = rmq.topic("Orders", slots=1)
    queue.send([b"m"], fixed_time=0, headers=[(EVIL, EVIL.encode())])
    done = rmq("peek", "Orders", "--json")
    assert is_plain(done.out)
    assert done.json["headers"] == [{"key": EVIL, "value": EVIL}]


def test_an_error_that_quotes_them_is_escaped(rmq):
    queue = rmq.topic("Orders", slots=1)
    queue.server.client.hset(queue.keys.claims(0), "a:1:0", f"2 {EVIL}")
    for command in ("show Orders", "peek Orders --queue prepare"):
        done = rmq(*command.split())
        assert done.code == 1
        assert is_plain(done.err)


def test_the_log_of_a_listener_has_them_escaped(rmq, tmp_path):
    queue = rmq.topic("Orders", slots=1, max_retries=0)
    queue.send([b"m"], fixed_time=0)
    (tmp_path / "shop.py").write_text(SHOP)
    log = tmp_path / "log"
    command = [*rmq.command(), "listen", "Orders", "shop:bill", "--name", "billing"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with started(command, cwd=tmp_path, stderr=log.open("w"), env=environment) as process:
        wait_until(lambda: " died: " in log.read_text(), "the function was called")
        process.terminate()
        process.wait(timeout=60)
    assert is_plain(log.read_bytes().decode())
    assert r"ValueError: \x1b]0;renamed\x07\x1b[2J\x9b31m faked line \u202etxt" in log.read_text()


def test_a_log_line_with_a_traceback_has_them_escaped():
    program = f"""
import logging
from rmq_spark.cli.output import logging_everything
with logging_everything(): pass
try:
    raise ValueError({EVIL!r})
except ValueError:
    logging.getLogger("rmq_spark").exception("failed with %s", {EVIL!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    told = done.stderr.decode()
    assert is_plain(told)
    assert f"failed with {ESCAPED}\nTraceback" in told
