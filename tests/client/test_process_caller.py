"""A listener whose function runs in processes of its own."""

import asyncio
import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import weakref

import pytest

from rmq_spark.client import connect
from rmq_spark.client.receiving import callers, slot_claims
from rmq_spark.client.receiving.callers import ProcessCaller, in_process_caller
from rmq_spark.errors import InvalidOption, RmqError, UnusableFunction
from rmq_spark.protocol.claims import Delivered

from ..logs import logged
from ..seeding import numbered
from ..waiting import wait_until

SLOTS = 4


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", SLOTS, max_retries=1)
    return broker.queue("T")


@pytest.fixture
def open_caller():
    """Open callers, and kill their processes in the end."""
    opened = []

    def new(function, timeout_s=None):
        opened.append(ProcessCaller(pickle.dumps(function), "", timeout_s))
        return opened[-1]

    yield new
    for caller in opened:
        caller.give_up()


def call(caller, content):
    """Let a caller call its function, as a worker does. Returns why it has failed, or None."""
    caller.prepare()
    failure = caller.call(Delivered(content, "T", 0, 1000, None, 1, 16, "a:1:0:1", 1000))
    return failure and failure.reason


def is_alive(process):
    """Whether a process runs. Nobody may have waited for one that has ended."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- functions of the children, which import them from here


def write(message):
    """Note the message and the process in the file that it names."""
    content = message.content.decode()
    name, _, text = content.partition(" ")
    with open(name, "a") as file:
        file.write(f"{text} {os.getpid()}\n")


async def write_later(message):
    write(message)


def do(message):
    """Run a line of Python."""
    exec(message.content)


class Unloadable:
    """What can be pickled, but not unpickled."""

    def __reduce__(self):
        return int, ("no number",)

    def __call__(self, message):
        pass


# -- the caller


def test_each_call_runs_in_the_same_process(open_caller, tmp_path):
    caller, noted = open_caller(write), tmp_path / "noted"
    for number in range(3):
        assert call(caller, f"{noted} {number}".encode()) is None
    numbers, processes = zip(
        *(line.split() for line in noted.read_text().splitlines()), strict=True
    )
    assert numbers == ("0", "1", "2")
    assert len(set(processes)) == 1
    assert processes[0] != str(os.getpid())


def test_calls_run_in_a_program_whose_sockets_do_not_block(open_caller, monkeypatch, tmp_path):
    """Failed before, under gevent: each process ended at once, and its message lost a retry."""

    class Socket(socket.socket):
        def setblocking(self, is_blocking):
            """Do nothing: gevent notes it, and leaves the descriptor as it is."""

    def socketpair():
        ends = [Socket(fileno=end.detach()) for end in paired()]
        for end in ends:
            os.set_blocking(end.fileno(), False)
        return ends

    paired = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", socketpair)
    caller = open_caller(write)
    contents = [f"{tmp_path / 'noted'} {name}".encode() for name in "ab"]
    assert [call(caller, content) for content in contents] == [None, None]


def test_a_time_of_weeks_is_a_limit_like_any_other(open_caller):
    """Seen: "timeout is too large", since poll takes no more than 24 days."""
    caller = open_caller(do, timeout_s=366 * 86_400.0)
    assert call(caller, b"pass") is None


def test_a_coroutine_function_runs(open_caller, tmp_path):
    caller, noted = open_caller(write_later), tmp_path / "noted"
    assert call(caller, f"{noted} 0".encode()) is None
    assert noted.read_text()


def test_an_error_is_the_reason(open_caller):
    reason = call(open_caller(do), b"raise ValueError('no')")
    assert reason.startswith("ValueError: no")


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (b"os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        (b"os._exit(3)", "exit status 3"),
    ],
)
def test_a_function_that_ends_its_process_has_failed_and_the_next_call_runs(open_caller, line, how):
    caller = open_caller(do)
    assert call(caller, line) == f"ProcessEnded: {how}"
    assert call(caller, b"pass") is None


def test_a_function_that_exits_has_failed_in_the_same_process(open_caller, tmp_path):
    caller = open_caller(do)
    before = caller._process.pid
    assert call(caller, b"raise SystemExit(1)").startswith("SystemExit")
    assert caller._process.pid == before


def test_a_call_that_takes_too_long_is_killed_with_all_that_it_started(open_caller, tmp_path):
    noted = tmp_path / "noted"
    line = f"""
import subprocess
child = subprocess.Popen(["sleep", "1000"])
open({str(noted)!r}, "w").write(str(child.pid))
while True: pass
"""
    caller = open_caller(do, timeout_s=2.0)
    assert call(caller, line.encode()) == "TimeLimitExceeded: took longer than 2s"
    assert not caller._process.is_alive()
    wait_until(lambda: not is_alive(int(noted.read_text())), "the end of the grandchild")
    assert call(caller, b"pass") is None


def test_the_time_of_a_call_counts_while_its_process_takes_no_message(open_caller):
    """Failed before: what did not fit into the pipe waited for ever."""
    caller = open_caller(do, timeout_s=2.0)
    os.kill(caller._process.pid, signal.SIGSTOP)
    line = b"pass #".ljust(1 << 20, b"x")
    assert call(caller, line) == "TimeLimitExceeded: took longer than 2s"
    assert call(caller, line) is None


def test_a_process_that_was_killed_between_calls_is_replaced(open_caller):
    caller = open_caller(do)
    os.kill(caller._process.pid, signal.SIGKILL)
    wait_until(lambda: not caller._process.is_alive(), "its end")
    assert call(caller, b"pass") is None


def test_a_process_that_somebody_else_collects_costs_its_message_alone(open_caller):
    """Failed before: ProcessLookupError, which ended the listener."""
    caller, before = open_caller(do), signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "ProcessEnded: exit status" in call(caller, b"os._exit(3)")
        assert call(caller, b"pass") is None
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_function_can_see_whether_its_parent_is_alive(open_caller):
    """Failed before: the parent seemed to have ended, since what it had started was dropped."""
    line = b"import multiprocessing; assert multiprocessing.parent_process().is_alive()"
    assert call(open_caller(do), line) is None


def test_a_process_that_has_ended_keeps_its_number_until_its_group_is_killed(open_caller):
    """Failed before: the number was free again, and a kill of the group could meet others."""
    caller = open_caller(do)
    child = caller._process.pid
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not is_alive(child), "its end")
    multiprocessing.active_children()  # collects all children that multiprocessing knows
    os.kill(child, 0)
    caller.prepare()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_what_a_process_leaves_behind_is_killed_where_a_look_collects_it(open_caller, monkeypatch):
    monkeypatch.delattr(os, "waitid")  # as on macOS before Python 3.13
    test_a_process_that_dies_is_noticed_though_another_holds_its_pipe(open_caller)


def test_a_killed_guardian_is_replaced(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, time
from rmq_spark.client.receiving.child_process import ChildProcess

def fork():
    if (child := os.fork()) == 0:
        os.setsid()
        time.sleep(1000)
    return ChildProcess(child)

first = fork()
guardian = max(int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split())
os.kill(guardian, 9)
os.waitpid(guardian, 0)
second = fork()
print(first.pid, second.pid)
"""
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    children = [int(pid) for pid in ended.stdout.split()]
    wait_until(lambda: not any(map(is_alive, children)), "the end of both")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_service_does_not_end_a_call(open_caller, number):
    caller = open_caller(do)
    line = f"os.kill(os.getpid(), {int(number)})"
    assert call(caller, line.encode()) is None


def test_a_signal_while_a_process_starts_does_not_end_it(own_redis, tmp_path):
    """Seen: a stop while processes were starting told the user to guard the program."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import os, signal
from rmq_spark.client import connect

if __name__ == "__mp_main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)

def work(message):
    os.kill(os.getppid(), signal.SIGTERM)

if __name__ == "__main__":
    broker = connect({own_redis.url!r})
    broker.create("T", "FixedTime", 1)
    broker.queue("T").send(["m"], fixed_time=1000)
    broker.listen("T", "a", work, processes=True, workers=1).run()
    print(broker.queue("T").figures().counters["committed"])
"""
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_a_closed_caller_has_no_process(open_caller):
    caller = open_caller(do)
    caller.close()
    assert not caller._process.is_alive()


def test_a_function_that_cannot_be_loaded_is_refused(open_caller):
    with pytest.raises(UnusableFunction, match="cannot run in a process: ValueError: invalid lit"):
        open_caller(Unloadable())


def test_a_program_that_listens_without_a_guard_is_told(own_redis, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"""
from rmq_spark.client import connect

def work(message):
    pass

broker = connect({own_redis.url!r})
broker.create("T", "FixedTime", 4)
broker.listen("T", "a", work, processes=True, workers=1).run()
"""
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 1
    assert 'Call listen and run only under if __name__ == "__main__":' in ended.stderr


def test_children_end_when_their_parent_is_killed(tmp_path):
    noted = tmp_path / "noted"
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import pickle, os, time, signal
from rmq_spark.client.receiving.callers import ProcessCaller
from rmq_spark.protocol.claims import Delivered

def work(message):
    open({str(noted)!r}, "w").write(f"{{os.getpid()}} ")
    while True: pass

if __name__ == "__main__":
    caller = ProcessCaller(pickle.dumps(work), "", None)
    caller.call(Delivered(b"m", "T", 0, 1000, None, 1, 16, "a:1:0:1", 1000))
"""
    )
    parent = subprocess.Popen([sys.executable, program])
    wait_until(lambda: noted.exists() and noted.read_text().endswith(" "), "the call")
    child = int(noted.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(child), "the end of the child")


def test_what_a_function_has_started_ends_when_the_listener_is_killed(tmp_path):
    """Failed before: it went on beside the next delivery of the message."""
    noted = tmp_path / "noted"
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import pickle, os, subprocess, time
from rmq_spark.client.receiving.callers import ProcessCaller
from rmq_spark.protocol.claims import Delivered

def work(message):
    started = subprocess.Popen(["sleep", "1000"])
    with open({str(noted)!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{started.pid}} .")
    time.sleep(1000)

if __name__ == "__main__":
    caller = ProcessCaller(pickle.dumps(work), "", None)
    if (copy := os.fork()) == 0:  # it lives on, and holds all that its parent holds
        time.sleep(1000)
    open({str(noted)!r}, "w").write(f"{{copy}} ")
    caller.call(Delivered(b"m", "T", 0, 1000, None, 1, 16, "a:1:0:1", 1000))
"""
    )
    parent = subprocess.Popen([sys.executable, program])
    wait_until(lambda: noted.exists() and noted.read_text().endswith("."), "the call")
    copy, *others = map(int, noted.read_text().split()[:-1])
    parent.kill()
    parent.wait()
    try:
        wait_until(lambda: not any(map(is_alive, others)), "the end of all others")
    finally:
        os.kill(copy, signal.SIGKILL)


# -- the listener


def test_a_function_that_no_process_can_import_is_refused(broker, topic):
    with pytest.raises(InvalidOption, match=r"cannot run in processes: .* top of a module"):
        broker.listen("T", "a", lambda message: None, processes=True)


def test_every_message_is_given_to_a_process(broker, topic, tmp_path):
    noted = tmp_path / "noted"
    sent = [f"{noted} {number}" for number in range(200)]
    topic.send(sent, fixed_time=1000)
    with broker.listen("T", "a", write, processes=True, workers=2) as listener:
        wait_until(lambda: listener.succeeded == 200, "all messages")
    lines = [line.split() for line in noted.read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(200))
    assert str(os.getpid()) not in {process for _, process in lines}


def test_a_message_that_hangs_dies_alone_and_says_why(broker, topic, caplog):
    topic.send([b"while True: pass", b"pass"], fixed_time=1000, slot_basis=b"one")
    with broker.listen(
        "T", "a", do, processes=True, workers=1, timeout="500ms", delay=0
    ) as listener:
        wait_until(lambda: topic.figures().dead.count == 1, "its death")
        wait_until(lambda: listener.succeeded == 1, "the other")
    (page,) = (page for slot in topic.slots for page in topic.pages("dead", slot) if page.contents)
    assert page.deaths[0].reason == "TimeLimitExceeded: took longer than 500ms"


def test_a_stop_kills_what_outlasts_its_grace_and_gives_it_back(
    broker, topic, tmp_path, monkeypatch
):
    monkeypatch.setattr(slot_claims, "FIRST_CLAIM", 256)
    noted = tmp_path / "noted"
    line = f"open({str(noted)!r}, 'w').write('x'); time.sleep(1000)"
    topic.send([line, *numbered(10)], fixed_time=1000, slot_basis=b"one")
    with broker.listen("T", "a", do, processes=True, workers=2) as listener:
        wait_until(noted.exists, "the call")
        began_s = time.monotonic()
        listener.stop(grace="100ms")
    assert time.monotonic() - began_s < 60
    figures = topic.figures()
    assert figures.prepare.count == 0
    assert figures.store.count + figures.retry.count == 11


def test_a_function_that_cannot_be_loaded_ends_the_listener(broker, topic, caplog):
    topic.send(numbered(10), fixed_time=1000)
    listener = broker.listen("T", "a", Unloadable(), processes=True)
    with pytest.raises(UnusableFunction):
        listener.run()
    assert topic.figures().store.count == 10
    assert "waits for Redis" not in logged(caplog)


# -- what an adversary found


def fork_and_exit(message):
    """Fork, and let the copy leave by an exception, as a library may."""
    if message.content == b"forks" and os.fork() == 0:
        sys.exit(0)
    time.sleep(0.2)


def fork_and_die(message):
    """Die, and leave behind a process that has inherited everything."""
    if message.content == b"dies":
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(3)


def close_all(message):
    os.closerange(3, 100_000)
    time.sleep(1000)


def test_a_copy_that_the_function_forks_does_not_answer(open_caller):
    caller = open_caller(fork_and_exit)
    for content in (b"forks", b"plain", b"forks", b"plain"):
        began_s = time.monotonic()
        assert call(caller, content) is None
        assert time.monotonic() - began_s >= 0.2


def use_a_pool(message):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, [-1])


def test_a_copy_that_the_function_forks_ends_at_the_first_signal(open_caller):
    """Failed before: it ignored all signals, so the processes of a Pool did not end."""
    assert call(open_caller(use_a_pool, timeout_s=60), b"m") is None


def test_a_process_that_dies_is_noticed_though_another_holds_its_pipe(open_caller):
    caller = open_caller(fork_and_die)
    group = caller._process.pid
    reason = call(caller, b"dies")
    assert reason == "ProcessEnded: exit status 3"
    with pytest.raises(ProcessLookupError):
        wait_until(lambda: os.killpg(group, 0), "the end of what it left behind")
    assert call(caller, b"plain") is None


def test_a_process_that_dies_while_it_takes_a_message_is_noticed_though_another_holds_its_pipe(
    open_caller,
):
    """Failed before: the message waited for ever."""
    caller = open_caller(do)
    assert call(caller, b"if os.fork() == 0: time.sleep(1000)") is None
    os.kill(caller._process.pid, signal.SIGKILL)
    message = Delivered(bytes(1 << 20), "T", 0, 1000, None, 1, 16, "a:1:0:1", 1000)
    assert caller.call(message).reason == "ProcessEnded: killed by SIGKILL"


def test_a_function_that_closes_its_pipe_is_killed(open_caller):
    caller = open_caller(close_all)
    assert call(caller, b"m") == "ProcessEnded: killed by SIGKILL"


def test_a_process_that_cannot_be_started_ends_the_listener(broker, topic, monkeypatch):
    topic.send([b"os._exit(3)", b"pass"], fixed_time=1000, slot_basis=b"one")
    start = ProcessCaller._start
    starts = []

    def fail_the_second(self):
        starts.append(self)
        if len(starts) == 2:
            raise BlockingIOError("no more processes")
        start(self)

    monkeypatch.setattr(ProcessCaller, "_start", fail_the_second)
    listener = broker.listen("T", "a", do, processes=True, workers=1, delay=0)
    with pytest.raises(RmqError, match="A thread of the listener has failed: BlockingIOError"):
        listener.run(grace="1s")
    assert topic.figures().prepare.count == 0


def test_a_program_that_ends_starts_none(own_redis, tmp_path):
    """Failed before: it went on with new processes, for which it waited at its end."""
    (tmp_path / "endless.py").write_text("import time\ndef work(message): time.sleep(1000)\n")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import atexit, threading, time
from rmq_spark.client import connect
from endless import work

if __name__ == "__main__":
    broker = connect({own_redis.url!r})
    atexit.register(time.sleep, 2)  # as a library that writes its logs
    broker.create("T", "FixedTime", 1)
    broker.queue("T").send(["m", "n"], fixed_time=1000)
    listener = broker.listen("T", "a", work, processes=True, workers=1)
    threading.Thread(target=listener.run, daemon=True).start()
    while not listener.at_work:
        time.sleep(0.01)
"""
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_program_may_stop_its_listener_at_its_end(own_redis, tmp_path):
    """Failed before: the call in progress was killed first, and its message died."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "def work(message):\n"
        "    pathlib.Path('begun').touch()\n"
        "    while not pathlib.Path('ending').exists(): time.sleep(0.01)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import atexit, pathlib, threading, time
from rmq_spark.client import connect
from slow import work

def stop():
    listener.stop()
    pathlib.Path("ending").touch()
    thread.join()

if __name__ == "__main__":
    atexit.register(stop)
    broker = connect({own_redis.url!r})
    broker.create("T", "FixedTime", 1, max_retries=0)
    broker.queue("T").send(["m"], fixed_time=1000)
    listener = broker.listen("T", "a", work, processes=True, workers=1)
    thread = threading.Thread(target=listener.run, daemon=True)
    thread.start()
    while not pathlib.Path("begun").exists():
        time.sleep(0.01)
"""
    )
    ended = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    with connect(own_redis.url) as broker:
        counters = broker.queue("T").figures().counters
    assert (counters["committed"], counters["dead"]) == (1, 0)


MESSAGE = Delivered(b"m", "T", 0, 1, None, 1, 1, "a:1:0:1", 1)

KILLED_AT_ITS_START = """
import os
import pathlib
import signal

left = pathlib.Path({file!r})
number = int(left.read_text())
left.write_text(str(number - 1))
if number > 0:
    os.kill(os.getpid(), signal.SIGKILL)


def work(message):
    pass
"""


@pytest.mark.parametrize("kills", [1, 3, 100])
def test_a_process_that_is_killed_while_it_starts_is_started_again(tmp_path, monkeypatch, kills):
    """One kill by a lack of memory once ended the whole listener."""
    monkeypatch.setattr(callers, "_START_AGAIN_S", (0.01,) * 4)
    monkeypatch.syspath_prepend(tmp_path)
    left = tmp_path / "left"
    left.write_text("0")
    (tmp_path / f"killed{kills}.py").write_text(KILLED_AT_ITS_START.format(file=str(left)))
    work = importlib.import_module(f"killed{kills}").work
    pickled = pickle.dumps(work)
    caller = ProcessCaller(pickled, "", None)
    try:
        left.write_text(str(kills))
        caller._process.kill()
        if kills > 4:
            with pytest.raises(UnusableFunction, match="each of 5 was killed while it started"):
                caller.prepare()
        else:
            caller.prepare()
            assert caller.call(MESSAGE) is None
    finally:
        caller.close()


def test_a_failed_call_of_an_async_function_keeps_nothing():
    """Its variables once stayed until the garbage collector ran: hundreds of MB in an idle one."""

    class Large:
        pass

    kept = []

    async def fail(message):
        large = Large()
        kept.append(weakref.ref(large))
        await asyncio.sleep(0)
        raise ValueError

    caller = in_process_caller(fail, "")
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert "ValueError" in caller.call(MESSAGE).reason
        wait_until(lambda: [one() for one in kept] == [None] * 3, "the end of the tasks")
    finally:
        gc.enable()
