"""Retry, Bury and Snooze: what a function says about its message beside that it has failed."""

import asyncio
import pickle
from datetime import timedelta

import pytest

from rmq_spark import Bury, Message, Retry, Snooze, aio
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.pages import first_entries
from rmq_spark.topics.verdicts import Failure, Verdict, failure_of

from ..logs import logged
from ..seeding import numbered, suspect
from ..waiting import wait_until

LONG = "1h"
WAYS = ["threads", "coroutines", "processes", "asyncio"]


def say(message):
    """What its content names."""
    what = message.content.decode()
    if what == "retry":
        raise Retry(LONG, "later")
    if what == "retry soon" and message.delivery_count < 3:
        raise Retry("1ms") from KeyError("lost")
    if what == "bury":
        raise Bury("no such customer")
    if what == "snooze":
        raise Snooze(LONG)
    if what == "fail":
        raise ValueError("no")


async def say_later(message):
    await asyncio.sleep(0)
    say(message)


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 1, max_retries=3, retry_backoff="30m")
    return broker.queue("T")


def places(topic):
    """Of each message: the queue that it is in, its retries left, the reason of its death."""
    return {
        entry.content.decode(): (kind, entry.retries_left, entry.reason)
        for kind in ("store", "prepare", "retry", "dead")
        for entry in first_entries(topic.pages(kind, 0), 100)
    }


def listen(broker, topic, way, redis_url, expected):
    def ended(listener):
        counts = listener.succeeded, listener.failed, listener.snoozed, listener.left_alone
        return counts == expected and not topic.figures().prepare.count

    if way != "asyncio":
        function = say_later if way == "coroutines" else say
        settings = {"workers": 1, "processes": way == "processes"}
        with broker.listen("T", "a", function, **settings) as listener:
            wait_until(lambda: ended(listener), "all verdicts")
        return

    async def main():
        connected = await aio.connect(redis_url, key_prefix=broker.key_prefix)
        async with (
            asyncio.timeout(60),
            connected,
            connected.listen("T", "a", say_later) as listener,
        ):
            while not ended(listener):
                await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_every_message_ends_where_its_verdict_says(broker, topic, way, redis_url, caplog):
    topic.send([b"retry", b"bury", b"snooze", b"fail", b"well"], fixed_time=1000)
    before = topic.now_ms()
    with caplog.at_level("WARNING", "rmq_spark"):
        listen(broker, topic, way, redis_url, (1, 3, 1, 0))
    found = places(topic)
    reason = found["bury"][2]
    assert reason.startswith("Bury: no such customer (test_verdicts.py:")
    assert found == {
        "retry": ("retry", 3, None),
        "snooze": ("retry", 3, None),
        "fail": ("retry", 3, None),
        "bury": ("dead", 0, reason),
    }
    due = {e.content: e.due_time_ms - before for e in first_entries(topic.pages("retry", 0), 9)}
    assert due[b"retry"] >= 3_600_000 > due[b"fail"] >= 1_800_000
    assert due[b"snooze"] >= 3_600_000
    assert topic.figures().deaths == {"Bury": 1}
    log = logged(caplog)
    assert f"was buried: {reason}" in log
    assert "was rolled back: Retry: later (" in log
    assert "Snooze" not in log  # it is no failure


def test_the_log_says_of_the_last_delivery_that_its_message_died(broker, topic, caplog):
    """Failed before: it said that the message was rolled back, as of each delivery before."""

    def fail(message):
        raise Retry(0, f"delivery {message.delivery_count}")

    topic.send([b"m"], fixed_time=1000)
    with broker.listen("T", "a", fail) as listener:
        wait_until(lambda: listener.failed == 4, "all deliveries")
    assert places(topic)["m"][0] == "dead"
    about = "rmq: a message of topic T, slot 0 "
    lines = [line for line in logged(caplog).splitlines() if line.startswith(about)]
    assert [line.removeprefix(about).split(" (")[0] for line in lines] == [
        *(f"was rolled back: Retry: delivery {number}" for number in (1, 2, 3)),
        "died: Retry: delivery 4",
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_retry_soon_comes_soon_and_is_charged(broker, topic, way, redis_url):
    topic.send([b"retry soon"], fixed_time=1000)
    listen(broker, topic, way, redis_url, (1, 2, 0, 0))
    assert not places(topic)


def test_a_snooze_costs_no_retry_however_often(broker, topic):
    counts = []

    def snooze(message):
        counts.append((message.delivery_count, message.retries_left))
        if len(counts) < 10:
            raise Snooze(timedelta(0))

    topic.send([b"m"], fixed_time=1000)
    with broker.listen("T", "a", snooze) as listener:
        wait_until(lambda: listener.succeeded, "the end of its snoozes")
        assert (listener.failed, listener.snoozed) == (0, 9)
    assert counts == [(1, 3)] * 10


@pytest.mark.parametrize("delay", [0, "1h"])
def test_a_look_shows_the_retries_that_a_message_has_kept(broker, delay):
    """Failed before: it showed those of the topic if it had got fewer, but more deliveries came."""
    broker.create("T", "FixedTime", 1, max_retries=5)
    queue = broker.queue("T")
    queue.send(["m"], fixed_time=0)
    with broker.consumer("T", "a") as consumer:
        consumer.poll().rollback(delay=delay)
    broker.alter("T", max_retries=1)
    (entry,) = first_entries(broker.queue("T").pages("retry" if delay else "store", 0), 9)
    assert entry.retries_left == 5


def test_a_suspect_that_is_snoozed_at_once_lets_others_pass(broker, topic):
    """Failed before: it stayed suspect, and a claim takes suspects of one level alone."""
    topic.send([b"sleepy", *numbered(20)], fixed_time=1000)
    topic.server.client.zadd(topic.keys.store(0), {b"sleepy": suspect(3, 4)})

    def work(message):
        if message.content == b"sleepy" and listener.succeeded < 20:
            raise Snooze(0)

    listener = broker.listen("T", "a", work)
    with listener:
        wait_until(lambda: listener.succeeded == 21, "all")


def test_only_its_expiry_ends_a_message_that_is_always_snoozed(broker):
    broker.create("K", "FixedTime", 1, keyed=True, on_expiry="dead")
    topic, calls = broker.queue("K"), []

    def snooze(message):
        calls.append(message)
        raise Snooze("1ms")

    topic.send([Message(key=b"k")], fixed_time=1000, expires_at=topic.now_ms() + 3000)
    with broker.listen("K", "a", snooze):
        wait_until(lambda: topic.figures().dead.count, "its expiry")
    assert len(calls) > 1
    (dead,) = first_entries(topic.pages("dead", 0), 9)
    assert (dead.key, dead.reason) == (b"k", "expired")


def test_a_batch_buries_or_charges_nothing(broker, topic):
    topic.send([b"a", b"b", b"c", b"d"], fixed_time=1000)
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll()
        by_content = {message.content: message for message in batch}
        assert batch.rollback([by_content[b"a"]], bury=True, reason=ValueError("no")) == 1
        assert batch.rollback([by_content[b"b"]], charge=False, delay=LONG) == 1
        assert batch.rollback([by_content[b"c"]], charge=False) == 1
        assert batch.commit() == 1
    assert places(topic) == {
        "a": ("dead", 0, "ValueError: no"),
        "b": ("retry", 3, None),
        "c": ("store", 3, None),
    }


@pytest.mark.parametrize("how", [{"delay": "1s"}, {"charge": False}])
def test_a_batch_buries_at_once_and_for_good(broker, topic, how):
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll()
        with pytest.raises(InvalidOption, match=r"bury=True and (delay='1s'|charge=False)"):
            batch.rollback(bury=True, **how)
        assert batch.commit() == 1


@pytest.mark.parametrize("delay", ["10", "-1s", -1, 1.5, True, "367d", timedelta(days=367), b"1s"])
def test_a_delay_that_is_none_is_refused_where_it_is_given(delay):
    for verdict in (Retry, Snooze):
        with pytest.raises(
            InvalidOption, match=r"delay=.* is (not a duration|too long). Accepted: a number with"
        ):
            verdict(delay)


def test_a_snooze_needs_a_delay():
    with pytest.raises(InvalidOption, match="delay=None"):
        Snooze(None)


def test_a_reason_is_a_text_or_an_exception():
    for verdict in (Retry, Bury):
        with pytest.raises(InvalidOption, match="reason=5"):
            verdict(reason=5)


def raised(verdict, cause=None):
    try:
        raise verdict from cause
    except BaseException as error:
        return failure_of(error)


class Gone(Bury):
    def __init__(self, customer):
        super().__init__(f"customer {customer} is gone")


class Declined(Bury):
    """Its attributes are its own."""

    def __init__(self, number):
        self.failure, self.reason, self.delay, self.ending = number, 1, 2, 3

    def __str__(self):
        return f"declined {self.failure}"


class Unknown(Bury):
    """Nothing of its own."""


class Missing(LookupError, Bury):
    """Its __init__ is that of LookupError."""


@pytest.mark.parametrize(
    ("verdict", "cause", "reason"),
    [
        (Bury(), None, "Bury:  (test_verdicts"),
        (Bury("no\nline"), None, "Bury: no line (test_verdicts"),
        (Bury("text"), KeyError("x"), "Bury: text (test_verdicts"),
        (Bury(), KeyError("x"), "KeyError: 'x'"),
        (Bury(KeyError("x")), ValueError("y"), "KeyError: 'x'"),
        (Gone(7), None, "Gone: customer 7 is gone (test_verdicts"),
        (Declined(7), None, "Declined: declined 7 (test_verdicts"),
        (Missing("seven"), None, "Missing: seven (test_verdicts"),
        # Failed before: they were counted under the class of the exception.
        (Unknown(), KeyError("x"), "Unknown: KeyError: 'x'"),
        (Unknown(KeyError("x")), None, "Unknown: KeyError: 'x' (test_verdicts"),
        (Unknown("text"), KeyError("x"), "Unknown: text (test_verdicts"),
        (Declined(7), KeyError("x"), "Declined: declined 7 (test_verdicts"),
        (ExceptionGroup("of tasks", [Bury("text")]), None, "Bury: text"),
        (ExceptionGroup("of", [ExceptionGroup("it", [Gone(7)])]), None, "Gone: customer 7"),
        (Bury("x" * 1000), None, "Bury: " + "x" * 400),
    ],
)
def test_the_reason_of_a_verdict(verdict, cause, reason):
    failure = raised(verdict, cause)
    assert failure.reason.startswith(reason)
    assert len(failure.reason) <= 500
    assert (failure.ending, failure.delay_ms) == ("bury", None)


class Unready(Snooze):
    """A snooze without a delay would come again at once, for ever."""

    def __init__(self):
        pass


@pytest.mark.parametrize(
    "error", [Unready(), Verdict(None, None), ExceptionGroup("two", [Bury("a"), Bury("b")])]
)
def test_what_decides_nothing_is_an_ordinary_failure(error):
    assert raised(error) == Failure(raised(error).reason)


def test_a_verdict_of_one_task_in_a_group_counts(broker, topic):
    async def work(message):
        async with asyncio.TaskGroup() as group:
            group.create_task(say_later(message))

    topic.send([b"bury", b"snooze"], fixed_time=1000)
    with broker.listen("T", "a", work) as listener:
        wait_until(lambda: (listener.failed, listener.snoozed) == (1, 1), "both")
    assert topic.figures().deaths == {"Bury": 1}


async def return_later(message):
    return Bury("no")


@pytest.mark.parametrize("function", [lambda message: Snooze("1h"), return_later])
def test_a_verdict_that_is_returned_fails_and_loses_nothing(broker, topic, function, caplog):
    topic.send([b"m"], fixed_time=1000)
    with broker.listen("T", "a", function) as listener:
        wait_until(lambda: listener.failed, "the failure")
    assert topic.figures().retry.count == 1
    assert "TypeError: The function returned a " in logged(caplog)
    assert "Accepted: to raise it." in logged(caplog)


@pytest.mark.parametrize("verdict", [Retry("5m", "x"), Retry(), Bury("x"), Snooze("1h")])
def test_verdicts_go_from_process_to_process(verdict):
    copy = pickle.loads(pickle.dumps(verdict))
    assert type(copy) is type(verdict)
    assert isinstance(copy, Verdict)
    assert (failure_of(copy), str(copy)) == (failure_of(verdict), str(verdict))
