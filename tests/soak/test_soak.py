"""A short soak, and proof that it would see what it must not find."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
import redis

from rmq_spark.local.zookeeper import LocalEnsemble
from rmq_spark.protocol.claims import Figures, QueueFigures

from .. import servers
from ..processes import NEEDS_PROC, alive, family
from ..waiting import wait_until
from . import leftovers, watch
from .law import Outcome
from .soak import Soak, temporary_files_in
from .watch import ATTACHED, JCMD, MARK, Life, Sample, Watch, live_heap


def outcome(delivered, accepted=4, store=0, exactly_once=True, **more):
    counters = dict.fromkeys(("merged", "cancelled", "expired"), 0)
    counters |= {"accepted": accepted, "committed": 3, "dead": 1}
    nothing = QueueFigures()
    figures = Figures(QueueFigures(count=store), nothing, nothing, nothing, counters)
    return Outcome("T", "", figures, {"a", "b"}, Counter(delivered), exactly_once, **more)


def test_what_came_to_exactly_one_end_is_right():
    assert outcome(["a", "b"]).wrong() == []
    assert outcome(["a", "a", "b"], unsure={"a"}).wrong() == []
    assert outcome(["a", "a", "b"], exactly_once=False).wrong() == []
    assert outcome(["a", "b", "c"], allowed={"c"}).wrong() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (outcome(["a"]), "1 lost: b"),
        (outcome(["a", "b", "c"]), "1 never sent: c"),
        (outcome(["a", "a", "b"]), "1 twice: a"),
        (outcome(["a", "b"], accepted=5), "unaccounted for"),
        (outcome(["a", "b"], accepted=3), "unaccounted for"),
        (outcome(["a", "b"], accepted=5, store=1), "1 still wait"),
    ],
)
def test_what_did_not_is_named(found, said):
    (text,) = found.wrong()
    assert said in text


def life(memory, threads=lambda at: 20, files=lambda at: 30, name="python"):
    """A process of ten minutes. memory, threads, files: of the time in s."""
    seen = (Sample(at, memory(at), threads(at), files(at)) for at in range(0, 601, 5))
    return Life(1, name, tuple(seen))


def test_a_process_that_warms_up_and_stays_so_is_right():
    assert life(lambda at: min(100, at) + at % 7).wrong() == []


@pytest.mark.parametrize(
    ("grown", "said"),
    [
        (life(lambda at: 100 + at / 50), "memory grows by 1.20 MiB a minute"),
        (life(lambda at: 1, threads=lambda at: 10 + at // 10), "threads grow from 49 to 70"),
        (life(lambda at: 1, files=lambda at: at // 5), "files grow from 79 to 120"),
    ],
)
def test_a_process_that_grows_is_named(grown, said):
    assert grown.wrong() == [f"python (1): {said}"]


def test_a_jvm_may_grow_faster():
    assert life(lambda at: 100 + at / 50, name="java").wrong() == []


@NEEDS_PROC
def test_a_process_that_nobody_waits_for_is_found():
    watch = Watch("some mark")
    starter = f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', 'input()'])"
    environment = {**os.environ, MARK: "some mark"}
    pipe, keeps_open = os.pipe()
    subprocess.run([sys.executable, "-c", starter], env=environment, stdin=pipe, check=True)
    (left,) = watch.marked()
    assert left not in (os.getpid(), 1)
    os.close(keeps_open)
    os.close(pipe)


@NEEDS_PROC
def test_a_number_that_is_given_to_another_process_begins_another_life(monkeypatch):
    """Seen: after an hour, a service that had ended and a worker were one process that grew."""
    seen = Watch("another mark")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        env={**os.environ, MARK: "another mark"},
        stdin=subprocess.PIPE,
    ) as process:
        wait_until(lambda: process.pid in seen.marked(), "the process")
        seen.look()
        began = watch.started(process.pid)
        monkeypatch.setattr(watch, "started", lambda pid: began + 1)
        seen.look()
        process.communicate(b"\n")
    assert {number: len(of) for number, of in seen._samples.items()} == {
        (process.pid, began): 1,
        (process.pid, began + 1): 1,
    }


@NEEDS_PROC
def test_what_is_left_over_is_named(own_redis, tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "ENDS_S", 0.5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    over = threading.Event()
    before = set(threading.enumerate())
    program = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {own_redis.port}));"
        "print('connected', flush=True); input()"
    )
    with redis.Redis(port=own_redis.port, decode_responses=True) as client:
        client.set("passing", "x", ex=100)

        def found():
            of_redis = leftovers.connections(client) + leftovers.keys(client)
            return of_redis + leftovers.threads(before) + leftovers.files()

        assert found() == []
        client.set("staying", "x")
        (tmp_path / "rmq-x").touch()
        threading.Thread(target=over.wait, daemon=True).start()
        other = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdout.readline() == b"connected\n"
        texts = found()
        over.set()
        assert [text.split(" are left over")[0] for text in texts] == [
            *("1 connections", "1 keys", "1 threads", "files")
        ]
        assert leftovers.processes([other.pid]) == ["1 processes are left over"]
        assert other.wait(10) == -signal.SIGKILL


@pytest.mark.rounds
@pytest.mark.timeout(900)  # whole minutes on a machine that has much else to do
@NEEDS_PROC
def test_everything_at_once_ends_as_promised():
    if not servers.executables():
        servers.do_without()
    folder = Path(tempfile.mkdtemp(prefix="rmq-soak-"))
    with temporary_files_in(folder):
        soak = Soak(folder, minutes=2, seed=7)
        wrong = soak.run()
    assert wrong == [], f"see {folder}"
    assert soak.kills.total() > 0
    assert sum(each.delivered.total() for each in soak.outcomes) > 1000
    shutil.rmtree(folder)


@pytest.mark.skipif(
    not JCMD and "CI" not in os.environ, reason="A laptop may have a JRE, which lacks jcmd."
)
def test_the_live_heap_of_a_jvm_is_measured():
    before = set(family(os.getpid()))
    with LocalEnsemble(1) as ensemble:
        (java,) = set(family(os.getpid())) - before
        assert 1 < live_heap(java) < 128, ensemble.hosts
        os.kill(java, signal.SIGKILL)
        wait_until(lambda: not alive(java), "its end")
        assert live_heap(java) is None
    (ATTACHED / f".java_pid{java}").unlink()
