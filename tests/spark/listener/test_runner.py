"""The process that runs the function of each_message: what it survives, and what ends it."""

import contextlib
import errno
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rmq_spark.client.receiving import child_process
from rmq_spark.errors import UnusableFunction
from rmq_spark.spark.listener import child
from rmq_spark.spark.listener.child import InputFormat, Job
from rmq_spark.spark.listener.runner import MessageRunner, Stopped
from rmq_spark.topics.verdicts import Ending, Hold

from ... import programs
from ...processes import alive
from ...waiting import wait_until

SCHEMA = StructType([StructField("content", StringType()), StructField("n", LongType())])
GENEROUS_S = 60.0
SHORT_S = 0.2  # a limit that hanging code passes; nothing else is called under it
LIMIT_S = 1.0  # the same beside calls that return at once, which a busy machine may delay


def rows(count, size=0):
    return pa.RecordBatch.from_arrays(
        [pa.array([f"m{n}" + "x" * size for n in range(count)]), pa.array(range(count))],
        names=["content", "n"],
    )


@pytest.fixture
def runner_for():
    made = []

    def new(function, input_format=InputFormat.MESSAGE, loading_s=GENEROUS_S, **settings):
        name = f"function{len(made)}-id"
        job = Job(name, cloudpickle.dumps(function), input_format, SCHEMA.json(), **settings)
        made.append(MessageRunner(job, loading_s))
        return made[-1]

    yield new
    for runner in made:
        runner.close()


@pytest.fixture
def notes(tmp_path):
    """A file to which functions append numbers, and what stands in it."""

    class Notes:
        path = str(tmp_path / "notes")

        def read(self):
            with open(self.path) as file:
                return [int(line) for line in file]

    return Notes()


def noting(path, then=None):
    """A function that notes a message's number first."""

    def call(row):
        with open(path, "a") as file:
            file.write(f"{row.n}\n")
        if then is not None:
            then(row)

    return call


def failed(failures):
    return [row for failure in failures for row in failure.rows]


# -- one by one


def test_each_row_is_given_once_and_in_order(runner_for, notes):
    runner = runner_for(noting(notes.path))
    assert runner.run(rows(1000)) == []
    assert notes.read() == list(range(1000))


def test_only_rows_that_raise_fail_with_type_text_and_place(runner_for, notes):
    def refuse(row):
        if row.n in (3, 5):
            raise ValueError(f"no  {row.content}\nplease")

    failures = runner_for(noting(notes.path, refuse)).run(rows(8))
    assert failed(failures) == [3, 5]
    assert failures[0].failure.reason.startswith("ValueError: no m3 please (test_runner.py:")
    assert notes.read() == list(range(8))


def test_an_error_text_is_bounded_and_may_be_unreadable(runner_for):
    def refuse(row):
        class Unreadable(Exception):
            def __str__(self):
                raise RuntimeError

        raise (Unreadable() if row.n else ValueError("x" * 100_000))

    long, unreadable = runner_for(refuse).run(rows(2))
    assert len(long.failure.reason) == 500
    assert unreadable.failure.reason.startswith("Unreadable: (its text cannot be read)")


def test_exits_and_what_nobody_runs_are_failures(runner_for):
    def odd(row):
        async def coroutine():
            pass

        async def generate_later():
            yield

        if row.n == 0:
            sys.exit(1)
        if row.n == 1:
            raise KeyboardInterrupt
        if row.n == 2:
            return (n for n in ())
        if row.n == 3:
            return coroutine()
        if row.n == 4:
            return generate_later()
        return "anything"

    assert failed(runner_for(odd).run(rows(7))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("input_format", [InputFormat.MESSAGE, InputFormat.ARROW])
def test_what_a_call_sets_in_its_context_is_not_there_for_the_next(runner_for, input_format):
    def work(_):
        import decimal  # what is sent to the process must not hold a context variable

        if decimal.getcontext().prec == 7:
            raise ValueError("set by another call")
        decimal.setcontext(decimal.Context(prec=7))

    runner = runner_for(work, input_format)
    assert [runner.run(rows(2)) for _ in range(2)] == [[], []]


def test_more_failures_than_a_pipe_holds(runner_for):
    def refuse(row):
        raise ValueError("x" * 300)

    assert failed(runner_for(refuse).run(rows(1000))) == list(range(1000))


def test_a_batch_larger_than_a_pipe(runner_for):
    def check(row):
        assert len(row.content) > 10_000

    assert runner_for(check).run(rows(1000, size=10_000)) == []


# -- the process


def test_the_process_and_what_it_keeps_live_on_from_batch_to_batch(runner_for, notes):
    def count(row, kept=[]):  # noqa: B006 - what is kept is the test
        kept.append(row)
        assert len(kept) == row.n + 1

    runner = runner_for(count)
    assert runner.run(rows(3)) == []
    pid = runner.pid
    assert runner.run(rows(6).slice(3)) == []
    assert runner.pid == pid


def hang_in_sleep(row):
    time.sleep(1000)


def hang_in_c(row):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.read(os.pipe()[0], 1)


def hang_on_every_error(row):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1000)


def hang_in_its_text(row):
    class Hanging(Exception):
        def __str__(self):
            time.sleep(1000)

    raise Hanging


@pytest.mark.parametrize("hang", [hang_in_sleep, hang_in_c, hang_on_every_error, hang_in_its_text])
def test_what_hangs_is_killed_alone(runner_for, notes, hang):
    def some_hang(row):
        if row.n == 2:
            hang(row)

    runner = runner_for(noting(notes.path, some_hang))
    failures = runner.run(rows(5), LIMIT_S)
    assert failed(failures) == [2]
    assert failures[0].failure.reason == "TimeLimitExceeded: took longer than 1s"
    assert notes.read() == list(range(5))


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda: os._exit(3), "ProcessEnded: exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ProcessEnded: killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "ProcessEnded: killed by SIGSEGV"),
        (lambda: os.closerange(3, 1000) or time.sleep(1000), "ProcessEnded: killed by SIGKILL"),
    ],
    ids=["exit", "kill", "segfault", "closes the pipes"],
)
def test_a_process_that_ends_takes_its_own_message_with_it(runner_for, notes, end, reason):
    def some_end(row):
        if row.n in (0, 3, 4, 6):
            end()

    failures = runner_for(noting(notes.path, some_end)).run(rows(7))
    assert [(rows, failure.reason) for rows, failure in failures] == [
        ([n], reason) for n in (0, 3, 4, 6)
    ]
    assert notes.read() == list(range(7))


def test_a_process_killed_after_the_report_of_a_hold_has_held_the_rows_behind_it(
    runner_for, notes, monkeypatch
):
    def hold(row):
        if row.n == 1:
            raise Hold("1h")

    def reply_and_end(process, kind, *values):
        reply(process, kind, *values)
        if kind == "failed":
            os.kill(os.getpid(), signal.SIGKILL)  # before it has marked the rows

    reply = child._Child._reply
    monkeypatch.setattr(child._Child, "_reply", reply_and_end)
    failures = runner_for(noting(notes.path, hold)).run(rows(4))
    assert [(rows, failure.ending) for rows, failure in failures] == [
        ([2, 3], Ending.UNREAD),
        ([1], Ending.UNCHARGED),
    ]
    assert notes.read() == [0, 1]


def test_a_process_killed_between_batches_costs_nothing(runner_for, notes):
    runner = runner_for(noting(notes.path))
    runner.run(rows(2))
    os.kill(runner.pid, signal.SIGKILL)
    assert runner.run(rows(4).slice(2)) == []
    assert notes.read() == [0, 1, 2, 3]


def test_an_idle_process_ends_by_itself_and_a_new_one_goes_on(runner_for, notes):
    runner = runner_for(noting(notes.path), idle_s=0.05)
    runner.run(rows(1))
    wait_until(runner.ended, "the child ends")
    assert runner.run(rows(2).slice(1)) == []
    assert notes.read() == [0, 1]


def test_what_the_function_started_ends_with_its_process(runner_for, notes):
    def start(row):
        helper = subprocess.Popen(["sleep", "1000"])
        fork = os.fork()  # holds every descriptor that its parent holds
        if fork == 0:
            time.sleep(1000)
        with open(notes_path, "a") as file:
            file.write(f"{helper.pid}\n{fork}\n")
        os._exit(1)

    notes_path = notes.path
    assert failed(runner_for(start).run(rows(1))) == [0]
    for pid in notes.read():
        wait_until(lambda pid=pid: not alive(pid), "it ends")


def test_prints_do_not_disturb(runner_for, capfd):
    def chatter(row):
        sys.stdout.write("a line\x00" * 1000)
        os.write(1, b"[1, 2]" * 1000)
        sys.stderr.write("hello")

    assert runner_for(chatter).run(rows(100)) == []
    assert capfd.readouterr().out.count("[1, 2]") == 100_000


def test_it_holds_nothing_of_its_parents_files_and_handles_no_signal(runner_for):
    def check(row):
        # Standard input, too, is nobody's any more.
        assert os.read(0, 1) == b""
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])

    ours, peer = socket.socketpair()
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        runner = runner_for(check)
        assert runner.run(rows(1)) == []
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    ours.close()
    peer.settimeout(GENEROUS_S)
    assert peer.recv(1) == b""
    peer.close()
    assert alive(runner.pid)


def test_its_parent_may_have_thousands_of_files_open(runner_for, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        with contextlib.ExitStack() as files:
            for _ in range(2000):
                files.enter_context(open(tmp_path / "open", "w"))
            assert runner_for(print).run(rows(1)) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def pipes():
    """The pipes of this process. Its sockets come and go in other threads, too."""
    found = set()
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            of = os.fstat(int(number))
            if stat.S_ISFIFO(of.st_mode):
                found.add((of.st_dev, of.st_ino))
    return found


@pytest.mark.parametrize("fails", ["fork", "posix_spawn"])
def test_a_process_that_cannot_be_started_leaves_no_file_open(runner_for, monkeypatch, fails):
    """Failed before: each try of a machine without room left two pipes open."""

    def fail(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "no room for a process")

    monkeypatch.setattr(child_process, "_guard", child_process._Guard())
    monkeypatch.setattr(os, fails, fail)
    before = pipes()
    with pytest.raises(BlockingIOError):
        runner_for(print).run(rows(1))
    assert pipes() <= before


WORKER = """
    import os, subprocess, sys, time
    from pyspark import cloudpickle
    from rmq_spark.spark.listener.child import InputFormat, Job
    from rmq_spark.spark.listener.runner import MessageRunner
    from tests.spark.listener import test_runner as tests

    def function(row):
        started = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
        sys.stdout.write(f"{os.getpid()} {started.pid}\\n")
        sys.stdout.flush()
        time.sleep(1000 if sys.argv[1] == "hangs" else 0)

    job = Job("", cloudpickle.dumps(function), InputFormat.MESSAGE, tests.SCHEMA.json())
    MessageRunner(job).run(tests.rows(1))
    time.sleep(1000)
"""


@pytest.mark.parametrize("state", ["hangs", "idle"])
def test_no_process_outlives_its_worker(tmp_path, state):
    """Failed before: what the function had started went on beside the batch's replay."""
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(WORKER))
    with subprocess.Popen(
        [sys.executable, str(program), state],
        stdout=subprocess.PIPE,
        env=programs.environment(),
    ) as worker:
        pids = [int(pid) for pid in worker.stdout.readline().split()]
        assert all(map(alive, pids))
        worker.kill()
    wait_until(lambda: not any(map(alive, pids)), "the child ends, and what it has started")


# -- a runner that is told to stop


def after(path, calls):
    """Goes on until a function has noted so many calls."""

    def should_continue(worked, failures):
        told.append((worked, failed(failures)))
        with open(path, "a+") as file:
            file.seek(0)
            return len(file.readlines()) < calls

    told = []
    should_continue.told = told
    return should_continue


def test_a_stop_ends_the_process_and_tells_what_was_done_before(runner_for, notes):
    def work(row):
        if row.n in (1, 3):
            raise ValueError("no")
        if row.n == 4:
            time.sleep(1000)

    runner = runner_for(noting(notes.path, work))
    should_continue = after(notes.path, 5)
    with pytest.raises(Stopped) as stopped:
        runner.run(rows(9), should_continue=should_continue)
    assert (stopped.value.worked, failed(stopped.value.failures)) == (4, [1, 3])
    assert notes.read() == list(range(5))
    assert runner.pid is None
    assert runner.run(rows(9).slice(5)) == []


def test_a_stop_counts_on_where_a_process_has_died(runner_for, notes):
    def work(row):
        if row.n == 1:
            os._exit(1)
        if row.n == 3:
            time.sleep(1000)

    should_continue = after(notes.path, 4)
    with pytest.raises(Stopped) as stopped:
        runner_for(noting(notes.path, work)).run(rows(9), should_continue=should_continue)
    assert (stopped.value.worked, failed(stopped.value.failures)) == (3, [1])
    assert should_continue.told[-1] == (3, [1])


def test_a_stop_within_a_call_with_a_batch_counts_none_of_it(runner_for, notes):
    def work(batch):
        with open(notes_path, "a") as file:
            file.write("0\n")
        time.sleep(1000)

    notes_path = notes.path
    with pytest.raises(Stopped) as stopped:
        runner_for(work, InputFormat.ARROW).run(rows(9), should_continue=after(notes.path, 1))
    assert (stopped.value.worked, stopped.value.failures) == (0, [])


# -- functions that cannot be run


class Unloadable:
    def __reduce__(self):
        return (exec, ("raise ImportError('no module named billing')",))

    def __call__(self, row):
        pass


class Deadly(Unloadable):
    def __reduce__(self):
        return (os._exit, (7,))


def test_a_function_that_cannot_be_loaded_is_no_messages_fault(runner_for):
    with pytest.raises(UnusableFunction, match="ImportError: no module named billing"):
        runner_for(Unloadable()).run(rows(3))


class Slow(Unloadable):
    """Hangs while it is loaded, or for a while."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        return (_load_slowly, (self.seconds,))


def _load_slowly(seconds):
    time.sleep(seconds)
    return str


@pytest.mark.parametrize("size", [0, 10_000], ids=["small", "larger than a pipe"])
def test_a_function_whose_loading_hangs_is_no_messages_fault(runner_for, size):
    runner = runner_for(Slow(1000), loading_s=SHORT_S)
    begun = time.monotonic()
    with pytest.raises(UnusableFunction, match=r"each_message, function0, was not loaded .* 0.3 s"):
        runner.run(rows(100, size), 0.3)  # the longer of both
    assert time.monotonic() - begun >= 0.3
    assert runner.pid is None


@pytest.mark.parametrize("size", [0, 10_000], ids=["small", "larger than a pipe"])
@pytest.mark.parametrize("limit_s", [LIMIT_S, None])
def test_a_function_may_take_longer_to_load_than_a_message_may(runner_for, size, limit_s):
    loading_s = SHORT_S if limit_s is None else GENEROUS_S  # it bounds nothing without a limit
    assert runner_for(Slow(1.2), loading_s=loading_s).run(rows(100, size), limit_s) == []


def test_a_process_that_takes_no_more_messages_is_replaced(runner_for, notes):
    runner = runner_for(noting(notes.path), loading_s=8)
    assert runner.run(rows(1), GENEROUS_S) == []
    pid = runner.pid
    os.kill(pid, signal.SIGSTOP)
    batch = rows(100, 10_000)
    assert runner.run(batch.slice(1), LIMIT_S) == []
    assert runner.pid != pid
    assert notes.read() == list(range(100))


def test_a_function_whose_loading_kills_the_process_is_no_messages_fault(runner_for):
    with pytest.raises(UnusableFunction, match="ended twice before a message"):
        runner_for(Deadly()).run(rows(3))


# -- whole batches


@pytest.mark.parametrize(
    ("input_format", "kind"),
    [(InputFormat.ARROW, pa.RecordBatch), (InputFormat.PANDAS, pd.DataFrame)],
)
def test_a_function_of_batches_returns_what_failed(runner_for, input_format, kind):
    def odd_ones(batch):
        assert type(batch).__name__ == name
        numbers = batch["n"] if name == "DataFrame" else batch["n"].to_numpy()
        return numbers % 2 == 1

    name = kind.__name__
    assert failed(runner_for(odd_ones, input_format).run(rows(5))) == [1, 3]


def test_a_batch_fails_whole_when_its_call_raises_hangs_or_dies(runner_for):
    def fall(batch):
        first = batch["n"][0].as_py()
        if first == 1:
            raise ValueError("no")
        if first == 2:
            os._exit(1)
        if first == 3:
            time.sleep(1000)
        if first == 4:
            return "nonsense"
        return None

    runner = runner_for(fall, InputFormat.ARROW)
    batch = rows(9)
    reasons = []
    for first in range(6):
        failures = runner.run(batch.slice(first, 3), SHORT_S if first == 3 else None)
        assert failed(failures) == ([0, 1, 2] if 1 <= first <= 4 else [])
        reasons += [failed.failure.reason.split(":")[0] for failed in failures]
    assert reasons == ["ValueError", "ProcessEnded", "TimeLimitExceeded", "TypeError"]
