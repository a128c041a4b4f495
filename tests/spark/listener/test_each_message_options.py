"""What each_message refuses before a query starts, and what it shows of itself."""

import threading

import pytest

import rmq_spark
from rmq_spark.errors import InvalidOption
from rmq_spark.options import LISTENER

from ..driving import refused


@pytest.mark.parametrize("name", ["timeout", "delay"])
@pytest.mark.parametrize("text", ["5", "-5s", "", "soon", "1000d", 5, 0.5])
def test_a_duration_that_is_none_is_refused(name, text):
    with refused(InvalidOption, name, "Accepted: "):
        rmq_spark.each_message(print, **{name: text})


def test_a_timeout_of_nothing_is_refused():
    with refused(InvalidOption, "timeout='0s' is too short. Accepted: a duration, 1ms to 366d."):
        rmq_spark.each_message(print, timeout="0s")


@pytest.mark.parametrize("batch", ["rows", 1.5, None, []])
def test_an_unknown_kind_of_batch_is_refused(batch):
    with refused(InvalidOption, "Accepted: False, True or 'arrow', 'pandas'."):
        rmq_spark.each_message(print, batch=batch)


def test_options_are_those_of_the_connection():
    with refused(InvalidOption, "each_message: maxRecordsPerTrigger", "keyPrefix"):
        rmq_spark.each_message(print, options={"maxRecordsPerTrigger": "1"})
    with refused(InvalidOption, "redis.url is not accepted (its value is not shown"):
        rmq_spark.each_message(print, options={"redis.url": "secret"})


def test_its_repr_shows_no_secret():
    options = {"redis.url": "redis://:secret@127.0.0.1", "redis.password": "secret"}
    assert repr(rmq_spark.each_message(print, options=options)) == (
        "EachMessage(print, succeeded=0, failed=0, snoozed=0, left_alone=0)"
    )


def test_what_is_no_function_or_cannot_be_sent_is_refused():
    async def later(message):
        pass

    class Later:
        async def __call__(self, message):
            pass

    lock = threading.Lock()
    with refused(InvalidOption, "got a str", "a function of one argument"):
        rmq_spark.each_message("bill")
    for function in (later, Later()):
        with refused(InvalidOption, "is async"):
            rmq_spark.each_message(function)
    with refused(InvalidOption, "cannot be sent", "lock", "Create it inside the function"):
        rmq_spark.each_message(lambda message: lock.acquire())


def test_its_documentation_names_every_option():
    text = rmq_spark.each_message.__doc__
    assert [o.name for o in LISTENER.options if o.name.split(".")[0] not in text] == []
