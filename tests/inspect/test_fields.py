"""Lines of a log: what happens to them while nobody reads stderr."""

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr

import pytest

from rmq_spark.inspect.fields import StderrHandler

FULL = 1 << 17


@pytest.fixture
def log():
    logger = logging.Logger("test")
    logger.addHandler(StderrHandler("%(message)s"))
    return logger


@contextmanager
def stderr_in_a_pipe():
    """Gives the end to read."""
    read, write = os.pipe()
    with ExitStack() as stack:
        reader = stack.enter_context(os.fdopen(read, "rb", buffering=0))
        stack.enter_context(redirect_stderr(stack.enter_context(os.fdopen(write, "w"))))
        yield reader


def test_lines_that_nobody_reads_are_dropped_and_then_counted(log):
    with stderr_in_a_pipe() as pipe:
        for number in range(3000):
            log.info("%d %s", number, "x" * 90)
        told = pipe.read(FULL).decode()
        assert 600 < told.count("\n") < 1000
        log.info("read again")
        kept = told.count("\n")
        remark, line = pipe.read(FULL).decode().splitlines()[-2:]
        assert remark == f"rmq: {3000 - kept:,} lines of this log dropped: nobody read stderr"
        assert line == "read again"
        log.info("and no more")
        assert pipe.read(FULL) == b"and no more\n"


def test_a_line_that_was_cut_ends_before_the_next(log):
    with stderr_in_a_pipe() as pipe:
        log.info("x" * FULL)
        told = pipe.read(FULL)
        assert set(told) == {ord("x")}
        log.info("next")
        remark = "rmq: 1 line of this log dropped: nobody read stderr"
        assert pipe.read(FULL).decode().splitlines() == ["", remark, "next"]


def test_a_line_that_is_longer_than_the_pipe_arrives_whole_if_it_is_read(log):
    with stderr_in_a_pipe() as pipe:

        def read():
            told = b""
            while not told.endswith(b"\n"):
                told += pipe.read(1000)
            return told

        with ThreadPoolExecutor() as pool:
            told = pool.submit(read)
            log.info("x" * FULL)
            assert told.result(60) == b"x" * FULL + b"\n"


@pytest.mark.parametrize("stderr", [None, "replaced"])
def test_a_stderr_without_a_file(monkeypatch, log, capsys, stderr):
    if stderr is None:
        monkeypatch.setattr(sys, "stderr", None)
    log.info("a line")
    assert capsys.readouterr().err == ("" if stderr is None else "a line\n")
