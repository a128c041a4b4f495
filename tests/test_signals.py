"""Two signals at one moment are one, wherever a signal ends a program."""

import signal
import subprocess
import sys

import pytest

from rmq_spark.client import connect

from . import programs

WAYS = {
    "a listener": """
from rmq_spark.process import stopped_by_signals
with stopped_by_signals(lambda number: told.append("stop")):
    signals()
""",
    "a listener of asyncio": """
import asyncio
from rmq_spark.process import stopped_by_signals
async def main():
    def stop(number):
        loop.call_soon_threadsafe(told.append, "stop")
    loop = asyncio.get_running_loop()
    with stopped_by_signals(stop):
        signals()
        await asyncio.sleep(0.01)
        if later:
            signals()
            await asyncio.sleep(0.01)
asyncio.run(main())
""",
    "a job": """
from rmq_spark.jobs.program import Ending
with Ending(lambda: told.append("stop")) as ending:
    signals()
told.append(ending.is_asked)
""",
    "a command": """
from rmq_spark.cli.session import ended_by_signals
with ended_by_signals() as ended:
    signals()
    told.append("stop" if ended.is_set() else "")
""",
}
BEGIN = """
import os, signal, sys, time
import rmq_spark.process
told, later = [], bool(sys.argv[1:])
if not later:  # a busy machine may let time pass between the two
    rmq_spark.process._SAME_MOMENT_S = 60.0
def signals():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5 if later else 0)
"""


def ended(way, *words):
    return subprocess.run(
        [sys.executable, "-c", BEGIN + WAYS[way] + 'print("in order")', *words],
        env=programs.environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("way", WAYS)
def test_two_at_one_moment_are_one(way):
    done = ended(way)
    assert done.returncode == (128 + signal.SIGTERM if way == "a job" else 0), done.stderr
    assert done.stdout == ("" if way == "a job" else "in order\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_later_one_ends_the_program_at_once(way):
    assert ended(way, "later").returncode == -signal.SIGTERM


ABANDONED = """
import asyncio
from rmq_spark.process import stopped_by_signals
loop = asyncio.new_event_loop()
left = stopped_by_signals(
    lambda number: loop.call_soon_threadsafe(told.append, "left"), is_over=loop.is_closed
)
left.__enter__()
loop.close()
"""


def test_a_block_whose_event_loop_is_closed_does_not_keep_others_from_stopping():
    """Failed before: the handler raised RuntimeError, and nothing else was stopped."""
    WAYS["beside one that was left"] = ABANDONED + WAYS["a listener"]
    done = ended("beside one that was left")
    assert (done.returncode, done.stdout) == (0, "in order\n"), done.stderr


def test_a_signal_ends_a_program_all_of_whose_event_loops_are_closed():
    WAYS["after one that was left"] = ABANDONED + "signals()\n"
    assert ended("after one that was left").returncode == -signal.SIGTERM


FORKING = """
import multiprocessing
from rmq_spark.process import stopped_by_signals
with stopped_by_signals(lambda number: told.append("stop")):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1]))
"""


def test_a_process_that_a_program_forks_ends_at_the_first_signal():
    """Failed before: it ignored the first one, so the processes of a Pool did not end."""
    WAYS["forking"] = FORKING
    done = ended("forking")
    assert (done.returncode, done.stdout) == (0, "[1]\nin order\n"), done.stderr


ELSEWHERE = """
import signal, sys, threading, time

def strike():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.01)
    time.sleep(0.5)  # the main thread waits then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=strike, daemon=True).start()
from rmq_spark.cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "words",
    [
        ("metrics", "--port=0"),
        ("console", "--port=0"),
        ("listen", "Signalled", "builtins:print", "--name=one"),
    ],
    ids=lambda words: words[0],
)
def test_a_signal_that_another_thread_got_is_heard(words, redis_url):
    """Failed before: the main thread waited for ever, and the program had to be killed."""
    with connect(redis_url) as broker:
        broker.create("Signalled", "FixedTime", 1)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *words],
        env=programs.environment(RMQ_REDIS_URL=redis_url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
