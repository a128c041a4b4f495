"""What the comparison of files and input sees."""

import pytest

from jobs.flights.check import Compared, compare
from jobs.flights.flights import DEPARTURES, REBOOKING, REPLANNING

CSV = """\
year,month,day,dep_delay,carrier,flight,tailnum,hour,minute,time_hour
2013,1,1,2,UA,1545,N14228,5,15,2013-01-01T10:00:00Z
2013,7,1,NA,AA,133,NA,15,45,2013-07-01T19:00:00Z
2013,12,31,-5,B6,507,N14228,23,59,2014-01-01T04:00:00Z
"""
KEYS = [
    "2013-01-01T10:00:00Z UA 1545",
    "2013-07-01T19:00:00Z AA 133",
    "2014-01-01T04:00:00Z B6 507",
]
START_MS = 1_000_000
# One ms a minute of the year, so that a due time can be told by heart.
YEAR_MS = 365 * 24 * 60
MINUTES = [5 * 60 + 15, 181 * 1440 + 15 * 60 + 45, 364 * 1440 + 23 * 60 + 59]
PRIORITIES = [17 + 100 + 2, 17 + 100 + 1440, 17 + 100 - 5]
WELL = {"missing": 0, "unexpected": 0, "altered": 0, "duplicated": 0}


@pytest.fixture
def check(spark, tmp_path):
    def run(topic, rows):
        (tmp_path / "flights.csv").write_text(CSV)
        received = spark.createDataFrame(rows, "content STRING, due_ms BIGINT, priority BIGINT")
        received = received.selectExpr("content", "timestamp_millis(due_ms) AS dueTime", "priority")
        received.write.parquet(str(tmp_path / "received"))
        return compare(
            spark,
            topic,
            tmp_path / "flights.csv",
            tmp_path / "received",
            start_ms=START_MS,
            year_ms=YEAR_MS,
        )

    return run


def flight(key):
    return f'{{"flight":"{key}","more":1}}'


def departed():
    pairs = zip(KEYS, MINUTES, strict=True)
    return [(flight(key), START_MS + minutes, None) for key, minutes in pairs]


def rebooked():
    return [(flight(key), None, urgency) for key, urgency in zip(KEYS, PRIORITIES, strict=True)]


@pytest.mark.parametrize(("topic", "rows"), [(DEPARTURES, departed()), (REBOOKING, rebooked())])
def test_all_as_in_the_input(check, topic, rows):
    assert check(topic, rows) == Compared(expected=3, delivered=3, **WELL)


def test_an_aircraft_that_was_sent_again_after_its_delivery_is_no_duplicate(check):
    rows = [("N14228", 5, None), ("N14228", 6, None)]
    assert check(REPLANNING, rows) == Compared(expected=2, delivered=2, **WELL)


def test_an_aircraft_that_came_twice_for_one_due_time_is_one(check):
    assert check(REPLANNING, [("N14228", 5, None)] * 2).duplicated == 1


def test_a_lost_flight_is_missing(check):
    found = check(DEPARTURES, departed()[:2])
    assert found == Compared(expected=3, delivered=2, **{**WELL, "missing": 1})


def test_a_flight_that_came_twice_is_a_duplicate(check):
    assert check(REBOOKING, [*rebooked(), rebooked()[0]]).duplicated == 1


def test_a_flight_that_nobody_sent_is_unexpected(check):
    assert check(REBOOKING, [*rebooked(), (flight("none"), None, 17)]).unexpected == 1


def test_a_content_without_a_key_is_unexpected(check):
    assert check(REBOOKING, [*rebooked(), ("{}", None, 17)]).unexpected == 1


def test_another_due_time_is_told(check):
    rows = departed()
    rows[1] = (rows[1][0], rows[1][1] + 1, None)
    assert check(DEPARTURES, rows).altered == 1


def test_another_priority_is_told(check):
    rows = rebooked()
    rows[2] = (rows[2][0], None, 17)
    assert check(REBOOKING, rows).altered == 1
