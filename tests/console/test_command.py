"""The command rmq console, as a program of its own."""

import re
import signal
import subprocess
from contextlib import contextmanager

import httpx
import pytest

from ..cli.running import Rmq, started


@pytest.fixture
def rmq(redis_url, server):
    return Rmq(redis_url, server)


@contextmanager
def console(rmq, *options):
    """A running console, and its address."""
    command = [*rmq.command(), "console", "--port", "0", *options]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().strip()


def test_it_serves_until_ctrl_c_and_logs_changes(rmq):
    rmq.topic("Orders")
    with console(rmq, "--allow-changes") as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        page = httpx.get(f"{address}topics/Orders").text
        mark = re.search(r'name="mark" value="(\w+)"', page)[1]
        form = {"mark": mark, "back": "/topics"}
        headers = {"Sec-Fetch-Site": "same-origin"}
        paused = httpx.post(f"{address}topics/Orders/pause", data=form, headers=headers)
        assert paused.status_code == 303
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "rmq console: local paused topic Orders" in errors
    assert rmq.broker.definition("Orders").paused


def test_it_waits_for_redis(rmq, tmp_path):
    command = [*rmq.command("redis://127.0.0.1:1/0"), "console", "--port", "0"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        assert httpx.get(f"{address}api/topics", timeout=30).status_code == 503


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "0.0.0.0"], "--host=0.0.0.0 needs --tokens"),
        (["--tokens", "/no/such/file"], "--tokens='/no/such/file' cannot be read"),
        (["--host", "192.0.2.1", "--tokens", "TOKENS"], "Cannot listen on 192.0.2.1:9310"),
    ],
)
def test_bad_options_are_told(rmq, tmp_path, options, told):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"anna {'a' * 24}\n")
    done = rmq("console", *(option.replace("TOKENS", str(tokens)) for option in options))
    assert done.code == 2
    assert told in done.err
    assert "aaaa" not in done.err
