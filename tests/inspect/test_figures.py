"""A look at all topics: what it costs, and that those who ask at the same time share it."""

import sys
import threading

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import ServerUnavailable
from rmq_spark.inspect.checks import OK, check_topics
from rmq_spark.inspect.figures import Rates, Shared, look

from ..waiting import wait_until

TOPICS, SLOTS = 300, 64


@pytest.fixture
def many(own_redis):
    """A broker with many topics, one of which has a message, and a consumer."""
    broker = connect(own_redis.url)
    for number in range(TOPICS):
        broker.create(f"T{number}", "FixedTime", SLOTS)
    broker.queue("T7").send(["m"], fixed_time=1)
    with broker.consumer("T7", "clerk") as clerk:
        clerk.poll(1)
        yield broker
    broker.close()


@pytest.mark.parametrize("asked", [look, check_topics])
def test_empty_slots_cost_next_to_nothing(many, asked):
    list(asked(many))  # loads the scripts
    many.server.command("CONFIG", "RESETSTAT")
    assert list(asked(many))
    calls = {
        name.removeprefix("cmdstat_"): of["calls"]
        for name, of in many.server.client.info("commandstats").items()
    }
    assert calls["evalsha"] <= TOPICS * SLOTS / 16
    assert calls["exists"] <= TOPICS * SLOTS
    others = sum(calls.values()) - calls["exists"] - calls["evalsha"]
    assert others < TOPICS * SLOTS / 4


def test_a_look_finds_the_consumers_of_each_topic(many):
    rows = look(many)
    assert len(rows) == TOPICS
    assert {
        row.topic: [seen.consumer for seen in row.consumers] for row in rows if row.consumers
    } == {"T7": ["clerk"]}
    assert [one.state for one in check_topics(many)] == [OK]


@pytest.mark.parametrize("fails", [False, True])
def test_those_who_ask_at_the_same_time_share_a_result_or_an_error(fails):
    """Failed before: after an error, each of them tried again, one after another."""
    calls, go_on, answers = [], threading.Event(), []

    def find():
        calls.append(len(calls))
        assert go_on.wait(60)
        if fails:
            raise ServerUnavailable(calls[-1])
        return calls[-1]

    shared = Shared(find, 3600 if fails else 0)  # an error is not kept

    def answer():
        try:
            return shared.get()
        except ServerUnavailable as error:
            return error.args[0]

    askers = [threading.Thread(target=lambda: answers.append(answer())) for _ in range(4)]
    for asker in askers:
        asker.start()

    def has_asked(asker):
        frame = sys._current_frames()[asker.ident]
        while frame.f_code is not Shared.get.__code__:
            frame = frame.f_back
            if frame is None:
                return False
        return "asked_s" in frame.f_locals

    wait_until(lambda: all(map(has_asked, askers)), "all ask")
    go_on.set()
    for asker in askers:
        asker.join()
    assert answers == [0] * 4
    assert answer() == 1  # who asks later gets a new one


def test_a_result_is_kept_as_long_as_it_is_wanted():
    found = iter(range(9))
    shared = Shared(lambda: next(found), 3600)
    assert [shared.get(), shared.get()] == [0, 0]
    shared.forget()
    assert shared.get() == 1


def test_what_was_found_before_a_change_is_not_kept_after_it():
    """A user who pressed pause saw for seconds that the topic runs."""
    found = iter(range(9))

    def find():
        number = next(found)
        if number == 0:
            shared.forget()  # by another user's change, while this looks
        return number

    shared = Shared(find, 3600)
    assert [shared.get(), shared.get(), shared.get()] == [0, 1, 1]


def test_rates_of_topics_that_are_gone_are_forgotten(broker):
    rates = Rates()
    for number in range(3):
        broker.create(f"T{number}", "FixedTime", 1, groups="default,audit")
        rows = look(broker)
        assert len(rates.note_all(rows)) == len(rows) == 2
        broker.queue(f"T{number}").send(["m"], fixed_time=1)
        assert [rate.came > 0 for rate in rates.note_all(look(broker))] == [True, True]
        broker.delete(f"T{number}")
    assert len(rates.line("T2", "audit")) == 1
    assert rates.line("T1", "audit") == []
    assert rates._before.keys() == rates._rates.keys() == {("T2", "default"), ("T2", "audit")}
