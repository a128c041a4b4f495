"""Lines of a log: what happens to them while nobody reads stderr."""

import logging
import os
import pty
import re
import subprocess
import sys
import threading
from contextlib import contextmanager, redirect_stderr

import pytest

from rmq_spark.inspect.logs import StderrHandler

from ..waiting import wait_until


@pytest.fixture
def log():
    logger = logging.Logger("test")
    logger.addHandler(StderrHandler("%(message)s"))
    return logger


class Unread:
    """A stderr whose lines are read from ``read`` on."""

    def __init__(self, ends):
        self.reader, writer = ends
        self.stderr = os.fdopen(writer, "w")
        self.lines = []

    def read(self):
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with os.fdopen(self.reader, closefd=False) as reader:
            for line in reader:
                self.lines.append(line.rstrip("\n"))
                if line == "end\n":
                    return

    def ended(self):
        return self.lines[-1:] == ["end"]


@contextmanager
def unread(ends):
    unread = Unread(ends)
    with unread.stderr, redirect_stderr(unread.stderr):
        yield unread
    os.close(unread.reader)


@pytest.mark.parametrize("ends", [os.pipe, pty.openpty])
def test_lines_that_nobody_reads_are_dropped_and_then_counted(log, ends):
    with unread(ends()) as it:
        for number in range(3000):
            log.info("%d %s", number, "x" * 90)
        it.read()
        wait_until(lambda: len(it.lines) > 1000, "what has waited")
        log.info("end")
        wait_until(it.ended, "the end")
    kept = [int(line.split()[0]) for line in it.lines if line[0].isdigit()]
    assert kept == sorted(set(kept))
    told = re.findall(
        r"^rmq: ([\d,]+) lines? of this log dropped: nobody", "\n".join(it.lines), re.M
    )
    assert sum(int(number.replace(",", "")) for number in told) == 3000 - len(kept) > 0


@pytest.mark.parametrize("ends", [os.pipe, pty.openpty])
def test_a_line_that_is_longer_than_the_buffer_arrives_whole_if_it_is_read(log, ends):
    with unread(ends()) as it:
        it.read()
        log.info("%s", "x" * (1 << 17))
        log.info("end")
        wait_until(it.ended, "the end")
    assert it.lines == ["x" * (1 << 17), "end"]


def test_the_lines_of_a_fork_are_written_too(log):
    with unread(os.pipe()) as it:
        it.read()
        log.info("parent")
        if (child := os.fork()) == 0:
            log.info("child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        log.info("end")
        wait_until(it.ended, "the end")
    assert it.lines == ["parent", "child", "end"]


@pytest.mark.parametrize("stderr", [None, "replaced"])
def test_a_stderr_without_a_file(monkeypatch, log, capsys, stderr):
    if stderr is None:
        monkeypatch.setattr(sys, "stderr", None)
    log.info("a line")
    assert capsys.readouterr().err == ("" if stderr is None else "a line\n")


LATE = """
import logging
from rmq_spark.inspect.logs import StderrHandler

logging.basicConfig(handlers=[StderrHandler("%(message)s")])

class Late:
    def __del__(self):
        logging.getLogger("late").warning("first\\nsecond")

late = Late()
late.itself = late
"""


def test_a_line_of_an_object_that_ends_with_the_program_is_written():
    """Failed before: without another line before it, the program hung; else it had a traceback."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"first\\nsecond\n")
