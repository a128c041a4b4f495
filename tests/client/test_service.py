"""Many functions in one process: marked with @listener, run by run."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from rmq_spark import connect, listener, run
from rmq_spark.client.service import Service, marked_in
from rmq_spark.errors import ConsumerMisused, InvalidOption, UnknownTopic

from ..waiting import wait_until

SHOP = """
import os
import rmq_spark

def note(*words):
    # One write a line: print writes word by word, between those of other threads.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@rmq_spark.listener("{orders}", workers=4)
def bill(message):
    note("bill", message.content.decode())

@rmq_spark.listener("{orders}", group="mail", delay="1h")
async def mail(message):
    note("mail", message.content.decode())
    raise ValueError("no mail")

@rmq_spark.listener("{jobs}", processes=True, workers=1)
def work(message):
    note("work", message.content.decode(), os.getppid())

if __name__ == "__main__":
    import shop
    rmq_spark.run(shop, name="all", workers=2)
"""


def bill(message):
    pass


def charge(message):
    pass


@pytest.fixture
def topics(broker):
    """Three topics, of which the first has two groups."""
    names = [broker.create(f"T{n}", "FixedTime", 4).name for n in range(3)]
    broker.alter(names[0], groups=["default", "mail"])
    return names


def module(**names):
    made = types.ModuleType("shop")
    vars(made).update(names)
    return made


@pytest.fixture
def serving():
    """Run a service in a thread. Returns what stops it, and raises what it has ended with."""
    ends = []

    def start(service):
        errors = []

        def serve():
            try:
                service.run(grace="5s")
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=serve)
        thread.start()

        def end():
            service.stop("5s")
            return ended()

        def ended():
            thread.join(60)
            assert not thread.is_alive()
            if errors:
                raise errors[0]

        ends.append(end)
        return ended, end

    yield start
    for end in ends:
        with contextlib.suppress(UnknownTopic):
            end()


def test_a_marked_function_stays_what_it_is():
    @listener("A")
    @listener("B", group="mail", workers=3, timeout="5s")
    def double(message):
        return 2 * message

    assert double(2) == 4
    marked = marked_in([double])
    assert [(one.topic, one.group) for one in marked] == [("B", "mail"), ("A", "")]
    assert (marked[0].settings.workers, marked[0].settings.timeout_ms) == (3, 5000)


def test_a_module_stands_for_its_marked_functions_be_they_imported_twice():
    one, two = listener("A")(lambda m: m), listener("B")(lambda m: m)
    found = marked_in([module(one=one, two=two, number=7), module(again=one), two])
    assert [mark.topic for mark in found] == ["A", "B"]


def test_a_mark_without_a_topic_is_refused_where_it_stands():
    """Failed before: it was taken, and forgot the function."""
    with pytest.raises(InvalidOption, match=r'got a function .* @rmq_spark\.listener\("Orders"\)'):
        listener(bill)
    with pytest.raises(InvalidOption, match="got a list"):
        listener(["A", "B"])
    with pytest.raises(InvalidOption, match="not a topic name"):
        listener("a b")


def test_a_function_in_a_class_is_refused():
    """Failed before: nothing looked for it there."""
    with pytest.raises(InvalidOption, match=r"Desk\.bill is in a class"):

        class Desk:
            @staticmethod
            @listener("A")
            def bill(message):
                pass


@pytest.mark.parametrize("group", ["", "default"])
def test_a_second_mark_for_the_same_group_is_refused(group):
    marked = listener("A")(lambda message: None)
    with pytest.raises(InvalidOption, match="is marked already for this topic, group default"):
        listener("A", group=group, workers=3)(marked)


def test_errors_name_the_function(broker, topics):
    def wrong():
        pass

    def lost(message):
        pass

    with pytest.raises(InvalidOption, match=r"listener\('A'\), .*\.wrong: The function of"):
        listener("A")(wrong)
    with pytest.raises(InvalidOption, match=r"\.lost: group='maill' is not a consumer group"):
        run(listener(topics[0], group="maill")(lost), name="a", broker=broker)


def test_what_wraps_a_marked_function_is_called_in_its_place():
    """As functools.wraps has it, which copies the mark."""
    calls = []

    @listener("A")
    def inner(message):
        calls.append("inner")

    @functools.wraps(inner)
    def outer(message):
        calls.append("outer")
        inner(message)

    (marked,) = marked_in([module(bill=outer)])
    marked.settings.function("m")
    assert calls == ["outer", "inner"]


def test_what_cannot_be_marked_is_refused():
    with pytest.raises(InvalidOption, match=r"builtins\.print cannot be marked"):
        listener("A")(print)


def test_two_functions_for_one_topic_and_group_are_refused_with_both_places():
    one, two = listener("Same")(bill), listener("Same")(charge)
    here = __name__
    with pytest.raises(InvalidOption, match=rf"group default: {here}\.bill and {here}\.charge\."):
        marked_in([one, two])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (len, "builtins.len is not marked with @rmq_spark.listener"),
        (module(number=7), "The module shop has no function that is marked"),
        ("shop", "'shop' is a str. Accepted: marked functions and modules, each an argument"),
    ],
)
def test_what_is_not_marked_is_refused(given, told):
    with pytest.raises(InvalidOption, match=told):
        marked_in([given])


def test_a_bad_setting_is_refused_where_it_stands():
    with pytest.raises(InvalidOption, match="<lambda>: timeout='x'"):
        listener("A", timeout="x")(lambda m: m)
    with pytest.raises(InvalidOption, match="workers"):
        listener("A", workers=0)(lambda m: m)
    with pytest.raises(InvalidOption, match="workers"):
        run(listener("A")(lambda m: m), name="a", workers=0)


def test_fewer_workers_than_functions_work_for_all_of_them(broker, topics, serving):
    lock, at_work, most, seen = threading.Lock(), [0], [0], []

    def work(message):
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        time.sleep(0.01)
        with lock:
            at_work[0] -= 1
            seen.append(message.content)

    marked = marked_in([listener(name, workers=8)(lambda m: work(m)) for name in topics])
    service = Service.open(broker, "all", marked, workers=2)
    assert service.workers == 2
    for name in topics:
        broker.queue(name).send([f"{name}-{n}" for n in range(20)], fixed_time=1000)
    _, end = serving(service)
    wait_until(lambda: len(seen) == 60, "all messages")
    end()
    assert most[0] == 2


def test_a_call_that_hangs_does_not_keep_a_worker_from_the_others(broker, topics, serving):
    released, seen = threading.Event(), []
    first = listener(topics[0], timeout="50ms", delay="1h")(lambda m: released.wait(60))
    second = listener(topics[1])(lambda m: seen.append(m.content))
    service = Service.open(broker, "all", marked_in([first, second]), workers=1)
    hanging, other = (broker.queue(name) for name in topics[:2])
    hanging.send(["hangs"], fixed_time=1000)
    _, end = serving(service)
    try:
        wait_until(lambda: hanging.figures().retry.count == 1, "the one that hangs, rolled back")
        other.send([f"m{n}" for n in range(5)], fixed_time=1000)
        wait_until(lambda: len(seen) == 5, "the others")
    finally:
        released.set()
        end()


def test_the_end_of_one_by_an_error_ends_all(broker, topics, serving):
    marks = [listener(name)(lambda m: None) for name in topics[:2]]
    service = Service.open(broker, "all", marked_in(marks))
    ended, _ = serving(service)
    wait_until(lambda: all(one.is_ready for one in service.listeners), "both")
    assert (service.why_not_ready(), service.why_stuck()) == ("", "")
    broker.delete(topics[0])
    with pytest.raises(UnknownTopic, match="T0"):
        ended()
    assert not any(one.is_running for one in service.listeners)
    assert "T0" in service.why_stuck()
    with pytest.raises(ConsumerMisused, match="This service has run"):
        service.run()


def test_a_topic_that_is_not_there_is_named_before_anything_begins(broker, topics):
    marks = [listener(name)(lambda m: None) for name in [*topics, "Nope"]]
    with pytest.raises(UnknownTopic, match="Nope"):
        run(*marks, name="all", broker=broker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_runs_them_all_until_a_signal(redis_url, tmp_path, number):
    prefix = f"{tmp_path.name}-"
    with connect(redis_url) as broker:
        orders = broker.create(f"{prefix}Orders", "FixedTime", 4, groups=["default", "mail"])
        jobs = broker.create(f"{prefix}Jobs", "FixedTime", 4)
        text = SHOP.format(orders=orders.name, jobs=jobs.name)
        (tmp_path / "shop.py").write_text(text, encoding="utf-8")
        broker.queue(orders.name).send(["o1"], fixed_time=1000)
        broker.queue(jobs.name).send(["j1"], fixed_time=1000)
        out = tmp_path / "out"
        with out.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "shop.py"],
                cwd=tmp_path,
                stdout=file,
                env={**os.environ, "PYTHONPATH": os.getcwd(), "RMQ_REDIS_URL": redis_url},
            )
        try:
            wait_until(lambda: len(out.read_text().splitlines()) == 3, "the three")
            process.send_signal(number)
            assert process.wait(60) == 0
        finally:
            process.kill()
        expected = {"bill o1", "mail o1", f"work j1 {process.pid}"}
        assert set(out.read_text().splitlines()) == expected
        assert broker.queue(orders.name, group="mail").figures().retry.count == 1
        broker.delete(orders.name)
        broker.delete(jobs.name)
