"""Messages that the command shows as a consumer gets them, and takes only when told to."""

import os
import pty
import signal
import subprocess

import pytest

from rmq_spark.client.queue import overview_of
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.pages import QueueKind

from .running import started


def stored(queue):
    pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
    return {entry for page in pages for entry in zip(page.contents, page.scores, strict=True)}


def test_a_look_gives_everything_back_as_it_was(rmq):
    queue = rmq.topic(max_retries=1, retry_backoff="1h")
    queue.send(["a", "b"], fixed_time=99)
    queue.send(["later"], fixed_time=4 * 10**12)
    before = stored(queue)
    for _ in range(3):  # more often than there are retries
        done = rmq("consume", "Orders")
        assert done.code == 0, done.err
        assert [line.split()[-1] for line in done.out.splitlines()] in (
            ["content", "a", "b"],
            ["content", "b", "a"],
        )
        assert "2 messages shown and given back; --commit takes them" in done.err
    assert stored(queue) == before
    assert [seen.consumer for seen in overview_of(queue).consumers] == []


def test_with_commit_messages_are_taken_for_good_from_one_group(rmq):
    queue = rmq.topic(groups=["", "audit"])
    queue.send(["a", "b", "c"], fixed_time=99)
    done = rmq("consume", "Orders", "--commit", "-n", "2", "--group", "audit")
    assert (done.code, len(done.out.splitlines())) == (0, 3)
    assert "2 messages shown and committed" in done.err
    assert [queue.of_group(group).figures().store.count for group in ("", "audit")] == [3, 1]


def test_json_has_the_names_of_the_sources_columns(rmq):
    rmq.topic("Ranked", "Priority").send([b"\xff\x00"], priority=77)
    done = rmq("consume", "Ranked", "--json")
    (line,) = done.lines
    assert line.pop("claimId").startswith("rmq-consume-")
    assert line.pop("claimedAt").endswith("Z")
    assert line == {
        "topic": "Ranked",
        "slot": rmq.broker.definition("Ranked").slot_of(b"\xff\x00"),
        "contentBase64": "/wA=",
        "priority": 77,
        "deliveryCount": 1,
        "retriesLeft": 16,
    }
    assert done.err == ""
    assert "\\xff\\x00" in rmq("consume", "Ranked").out


def test_with_a_closed_stdout_nothing_is_taken(rmq):
    queue = rmq.topic()
    queue.send(["a"], fixed_time=99)
    closed = ["sh", "-c", '"$@" >&-', "sh", *rmq.command(), "consume", "Orders", "--commit"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, b"stdout is closed" in done.stderr) == (2, True)
    assert queue.figures().store.count == 1


def test_nothing_due_says_what_there_is(rmq):
    queue = rmq.topic()
    queue.send(["later"], fixed_time=4 * 10**12)
    done = rmq("consume", "Orders")
    due = f"{rmq.typed} due Orders"
    assert (done.code, f"nothing is due. Waiting for their time: 1 ({due})" in done.out) == (
        3,
        True,
    )
    assert "1 message waiting" in rmq.type(due).out
    rmq.broker.alter("Orders", paused=True)
    queue.send(["m"], fixed_time=99)
    resume = f"{rmq.typed} resume Orders"
    assert rmq("consume", "Orders").out.endswith(f"run: {resume}\n")
    assert rmq.type(resume).code == 0
    assert not rmq.broker.definition("Orders").paused


def test_a_command_for_a_group_names_it(rmq):
    rmq.topic(groups=["default", "audit"])
    done = rmq("consume", "Orders", "--group", "audit")
    assert f"({rmq.typed} due Orders --group audit)" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--follow"], "--follow needs --commit"),
        (["--max", "8193"], "--max 8193 is not accepted without --commit"),
        (["--wait", "soon"], "--wait='soon' is not a duration"),
        (["--group", "other"], "rmq: --group='other' is not a consumer group"),
    ],
)
def test_what_cannot_be_consumed_is_refused(rmq, arguments, said):
    rmq.topic()
    done = rmq("consume", "Orders", *arguments)
    assert (done.code, said in done.err) == (2, True)


def test_it_waits_for_the_first_message(rmq):
    queue = rmq.topic()
    command = [*rmq.command(), "consume", "Orders", "--wait", "100s", "--json", "--commit"]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        while not overview_of(queue).consumers:
            assert process.poll() is None
        queue.send(["m"], fixed_time=99)
        assert '"content": "m"' in process.stdout.readline()
        assert process.wait(timeout=60) == 0
    assert queue.figures().counters["committed"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_wait_and_leaves_nothing(rmq, number):
    """Failed before: SIGTERM ended it with the code of Ctrl-C."""
    queue = rmq.topic()
    command = [*rmq.command(), "consume", "Orders", "--wait", "100s"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not overview_of(queue).consumers:
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        assert b"Traceback" not in process.stderr.read()
    assert overview_of(queue).consumers == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_on_a_terminal_until_it_is_ended(rmq, number):
    queue = rmq.topic()
    queue.send(["first"], fixed_time=99)
    terminal, other = pty.openpty()
    command = [*rmq.command(), "consume", "Orders", "--follow", "--commit"]
    with started(command, stdout=other, stdin=other, stderr=subprocess.DEVNULL) as process:
        os.close(other)
        shown = b""
        while b"first" not in shown:
            shown += os.read(terminal, 65536)
        queue.send(["second"], fixed_time=99)
        while b"second" not in shown:
            shown += os.read(terminal, 65536)
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
    os.close(terminal)
    figures = queue.figures()
    assert (figures.counters["committed"], figures.messages) == (2, 0)
    assert shown.count(b"content") == 1  # the heading


def test_what_nobody_could_read_is_not_committed_and_costs_no_retry(rmq):
    queue = rmq.topic(slots=1)
    queue.send([f"m{n}" * 50 for n in range(2000)], fixed_time=99)
    before = stored(queue)
    command = [*rmq.command(), "consume", "Orders", "--commit", "-n", "2000"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1
    assert stored(queue) == before


def test_a_look_that_is_killed_costs_nothing(rmq):
    """It is stopped while the pipe is full: it holds what it shows."""
    queue = rmq.topic(slots=1)
    queue.send([f"m{n}" * 50 for n in range(1000)], fixed_time=99)
    before = stored(queue)
    command = [*rmq.command(), "consume", "Orders", "-n", "1000"]
    with started(command, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        assert queue.figures().prepare.count == 1000
        process.kill()
        process.wait()
    (consumer,) = overview_of(queue).consumers
    run = max(header.run for header in queue.ask(reading.headers, consumer.consumer))
    queue.ask(claiming.release, queue.slots, consumer.consumer, run)  # its lease ends
    assert queue.expire() == 1000
    assert stored(queue) == before
