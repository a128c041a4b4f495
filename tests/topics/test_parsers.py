"""Texts that become values, and texts that are refused."""

from datetime import UTC, datetime, timedelta

import pytest

from rmq_spark.topics.parsing import (
    MOMENT,
    NotAccepted,
    checked_text,
    choice,
    duration,
    duration_or_whole,
    duration_text,
    moment_or_relative,
    whole,
)
from rmq_spark.topics.types import TopicType


def refusal(parser, text):
    with pytest.raises(NotAccepted) as raised:
        parser.read(text)
    return raised.value


@pytest.mark.parametrize("ms", [1001, 1_700_000_000_001, 1_893_456_000_999])
def test_a_time_keeps_its_milliseconds(ms):
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert MOMENT.read(time.isoformat()) == ms
    assert TopicType.FIXED_TIME.number_of(time) == ms


@pytest.mark.parametrize("text", ["1", "30", "1700000000", "99999999999"])
def test_a_typed_time_that_looks_like_seconds_is_refused(text):
    refused = refusal(moment_or_relative(lambda: 0), text)
    assert refused.reason.startswith("would be 197")
    assert refused.accepted.startswith(f"{text}s if you mean seconds from now, {text}000 if")


@pytest.mark.parametrize("text", ["0", "100000000000", "1700000000000"])
def test_a_typed_time_may_be_0_or_a_number_of_ms(text):
    assert moment_or_relative(lambda: 0).read(text) == int(text)
    assert MOMENT.read("30") == 30  # a program says what it means


@pytest.mark.parametrize("text", ["9" * 5000, "0", "10", "-1", "1.5", "", "1_0", "٣x"])
def test_a_number_out_of_its_bounds_or_none_is_refused(text):
    assert refusal(whole(1, 9), text).reason == "is not accepted"


def test_the_bounds_of_a_number_are_accepted():
    assert (whole(1, 9).read("1"), whole(1, 9).read(" 9 ")) == (1, 9)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("1999ms", "is too short"), ("180001ms", "is too long"), ("5", "is not a duration")],
)
def test_a_duration_out_of_its_bounds_says_what_it_is(text, reason):
    assert refusal(duration(2000, 180_000), text).reason == reason


def test_the_bounds_of_a_duration_are_accepted_and_told():
    wait = duration(2000, 180_000)
    assert (wait.read("2s"), wait.read("3m")) == (2000, 180_000)
    assert wait.accepted_plain == "a duration, 2s to 3m"


def test_a_text_without_a_unit_is_told_the_form_of_a_duration():
    assert refusal(duration(1), "5").accepted.startswith("a number with its unit, one of ms, s")


@pytest.mark.parametrize(("text", "ms"), [("30s", 30_000), ("30000", 30_000), (" 1 ", 1)])
def test_a_duration_may_have_no_unit_where_that_is_ms(text, ms):
    assert duration_or_whole(1, 40_000).read(text) == ms


@pytest.mark.parametrize("text", ["0", "0ms", "40001", "41s", "soon", "9" * 5000])
def test_a_duration_with_or_without_unit_has_bounds(text):
    refusal(duration_or_whole(1, 40_000), text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("17", 17), ("1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00:01+01:00", 1000)],
)
def test_a_moment_is_ms_or_iso_8601(text, ms):
    assert MOMENT.read(text) == ms


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "2030-01-01", "2030-01-01T08:00", "soon", ""])
def test_a_moment_without_zone_or_sense_is_refused(text):
    refusal(MOMENT, text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", 60_000),
        ("30s", 90_000),
        ("+1m", 120_000),
        ("-1m", 0),
        (" - 2 s ", 58_000),
        ("+1.5h", 5_460_000),
        ("0", 0),
        ("1970-01-01T01:00+01:00", 0),
        ("19700101T000001Z", 1000),
    ],
)
def test_a_moment_may_be_said_from_now(text, ms):
    assert moment_or_relative(lambda: 60_000).read(text) == ms


@pytest.mark.parametrize(
    "text", ["-61s", "999999999d", "5 weeks", "soon", "", "2030-01-01", "9" * 400 + "d"]
)
def test_a_moment_too_far_from_now_or_none_is_refused(text):
    refusal(moment_or_relative(lambda: 60_000), text)


def test_a_choice_is_taken_in_any_case():
    assert choice("atLeastOnce", "exactlyOnce").read(" ATLEASTONCE ") == "atLeastOnce"
    assert refusal(choice("send", "fail"), "drop").reason == "is not accepted"


def test_a_checked_text_stays_as_it_is():
    assert checked_text(str.encode, "text").read(" As It Is ") == " As It Is "


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (1500, "1500ms"),
        (60_000, "1m"),
        (5_400_000, "90m"),
        (2**5 * 86_400_000, "32d"),
    ],
)
def test_a_duration_is_written_in_its_largest_whole_unit(ms, text):
    assert duration_text(ms) == text
