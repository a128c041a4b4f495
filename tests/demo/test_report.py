"""The verdict and the table."""

from dataclasses import replace

import pytest

from jobs.flights.check import Compared
from jobs.flights.lateness import Lateness
from jobs.flights.report import Outcome, differences, gain, table
from rmq_spark.client import TopicType

GOOD = Outcome(
    topic="Departures",
    type=TopicType.FIXED_TIME,
    sent=1000,
    merged=0,
    compared=Compared(
        expected=1000, delivered=1000, missing=0, unexpected=0, altered=0, duplicated=0
    ),
    sent_per_s=500.4,
    received_per_s=12345.6,
    lateness=Lateness(412.0, 1234.5, []),
)
MERGED = replace(
    GOOD,
    topic="Replanning",
    type=TopicType.RANGE_MERGE,
    merged=900,
    compared=replace(GOOD.compared, delivered=100),
)


def test_what_a_topic_was_good_for_is_said_in_a_sentence():
    assert gain(MERGED) == (
        "Replanning: 1 000 changes took 100 pieces of work, because 90% merged with an equal one "
        "that waited."
    )
    assert gain(GOOD) == (
        "Departures: 1 000 messages waited for a time of their own; half came within 412 ms of it, "
        "99% within 1234 ms."
    )
    assert gain(replace(GOOD, lateness=None)) == ""


@pytest.mark.parametrize("outcome", [GOOD, MERGED])
def test_counts_as_they_must_be_give_no_difference(outcome):
    assert differences(outcome) == []
    assert outcome.lost == 0


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (replace(GOOD, sent=999), "999 sent, input has 1000"),
        (replace(GOOD, merged=1), "1 merged, though each is unique"),
        (replace(MERGED, merged=899), "100 delivered, 101 were new"),
        (replace(MERGED, merged=899), "1 lost"),
    ],
)
def test_a_wrong_count_of_redis_is_told(outcome, told):
    assert f"{outcome.topic}: {told}" in differences(outcome)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"delivered": 999, "missing": 1}, "1 lost"),
        ({"delivered": 999, "missing": 1}, "999 delivered, 1000 were new"),
        ({"missing": 1, "unexpected": 1}, "1 delivered that the input does not have"),
        ({"delivered": 1002, "duplicated": 2}, "2 delivered more than once"),
        ({"altered": 3}, "3 with another time or priority than the input"),
    ],
)
def test_a_wrong_delivery_is_told(change, told):
    wrong = replace(GOOD, compared=replace(GOOD.compared, **change))
    assert f"Departures: {told}" in differences(wrong)


def test_one_lost_is_not_made_up_for_by_one_that_came_twice():
    compared = replace(GOOD.compared, missing=1, duplicated=1)
    assert replace(GOOD, compared=compared).lost == 1


def test_the_table_has_a_line_for_each_topic_below_its_heading():
    priority = replace(GOOD, topic="Rebooking", type=TopicType.PRIORITY, lateness=None)
    heading, first, second = table([GOOD, priority]).splitlines()
    assert heading.split() == [
        *("topic", "type", "sent", "merged", "delivered", "lost", "duplicated"),
        *("sent/s", "received/s", "late", "p50", "late", "p99"),
    ]
    assert first.split("  ")[:1] == ["Departures"]
    assert "1 000" in first
    assert "12 346" in first
    assert first.endswith("412 ms   1234 ms")
    assert second.split()[-2:] == ["-", "-"]
    assert len(heading) == len(first) == len(second)
