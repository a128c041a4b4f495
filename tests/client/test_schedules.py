"""Schedules: when they occur, what Redis keeps of them, and who sends their messages."""

import asyncio
import itertools
import json
import logging
import re
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark import Message, aio
from rmq_spark.client import connect
from rmq_spark.client.schedules import LARGEST_MESSAGE_BYTES, Schedule, seen
from rmq_spark.errors import InvalidMessage, InvalidOption, ScriptFailed, UnknownTopic
from rmq_spark.inspect.checks import check_schedules
from rmq_spark.protocol.calls import fields_of
from rmq_spark.protocol.pages import first_entries
from rmq_spark.topics.keys import Keys, schedules_key
from rmq_spark.topics.parsing import ms_since_1970

from ..waiting import wait_until

ZURICH = "Europe/Zurich"
DAY_MS = 86_400_000


def ms(text, zone="UTC", fold=0):
    return ms_since_1970(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def cron(expression, zone="UTC", **bounds):
    return Schedule("s", "T", Message(b"m"), cron=expression, timezone=zone, **bounds)


def following(schedule, begin_ms, number):
    """The local times of the next occurrences, in order."""
    found = []
    while len(found) < number and (at := schedule.next_after(begin_ms)) is not None:
        found.append(schedule.local_time(at).isoformat())
        begin_ms = at
    return found


# What cronsim, and Debian's cron, do in the nights in which clocks change.
SPRING, AUTUMN = "2026-03-29", "2026-10-25"
NIGHTS = [
    # At 2:30, which there is not: at 3:00 instead.
    ("30 2 * * *", SPRING, [f"{SPRING}T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
    # At 2:30, which there is twice: the first time only.
    ("30 2 * * *", AUTUMN, [f"{AUTUMN}T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
    # Every hour is every hour that passes.
    ("0 * * * *", SPRING, [f"{SPRING}T{at}" for at in ("01:00:00+01:00", "03:00:00+02:00")]),
    (
        "0 * * * *",
        AUTUMN,
        [f"{AUTUMN}T{at}" for at in ("01:00:00+02:00", "02:00:00+02:00", "02:00:00+01:00")],
    ),
    ("0 3 * * *", SPRING, [f"{SPRING}T03:00:00+02:00", "2026-03-30T03:00:00+02:00"]),
]


@pytest.mark.parametrize(("expression", "day", "expected"), NIGHTS)
def test_nights_in_which_clocks_change(expression, day, expected):
    schedule = cron(expression, ZURICH)
    assert following(schedule, ms(f"{day}T00:30", ZURICH), len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "begin", "expected"),
    [
        ("0 12 29 2 *", "2026-01-01", ["2028-02-29T12:00:00+00:00", "2032-02-29T12:00:00+00:00"]),
        ("0 0 31 * *", "2026-02-01", ["2026-03-31T00:00:00+00:00", "2026-05-31T00:00:00+00:00"]),
        ("0 9 * * MON-FRI", "2026-11-27T09:00", ["2026-11-30T09:00:00+00:00"]),
        ("*/20 * * * * *", "2026-01-01", [f"2026-01-01T00:00:{at}+00:00" for at in (20, 40)]),
        ("0 3 * * *", "2026-01-01T03:00:00.500", ["2026-01-02T03:00:00+00:00"]),
        ("0 3 * * *", "2026-01-01T02:59:59.999", ["2026-01-01T03:00:00+00:00"]),
    ],
)
def test_times_of_cron_expressions(expression, begin, expected):
    assert following(cron(expression), ms(begin), len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "begin", "expected"),
    [
        # The clocks go back by half an hour, from 2:00, or within an hour, from 3:45 to 2:45.
        ("0 */2 * * *", "Australia/Lord_Howe", "2026-04-05T01:00", ["02:00", "04:00"]),
        ("*/15 1 * * *", "Australia/Lord_Howe", "2026-04-05T01:20", ["01:30", "01:45", "01:30"]),
        (
            "*/15 3 * * *",
            "Pacific/Chatham",
            "2026-04-05T03:20",
            ["03:30", "03:00", "03:15", "03:30"],
        ),
        # The day begins at 1:00, on a day that the expression names.
        ("*/30 1 * * SUN", "America/Havana", "2026-03-07T12:00", ["01:00", "01:30"]),
        ("0 30 1 * * SUN", "America/Havana", "2026-03-07T12:00", ["01:30"]),
    ],
)
def test_odd_changes_of_clocks(expression, zone, begin, expected):
    found = following(cron(expression, zone), ms(begin, zone), len(expected))
    assert [text[11:16] for text in found] == expected


@given(
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "15 1-3 * * *", "0 2 * * SUN", "*/50 * * * * *"]),
    st.sampled_from([ms(f"{SPRING}T00:00", ZURICH), ms(f"{AUTUMN}T00:00", ZURICH)]),
    st.integers(0, 6 * 3_600_000),
    st.integers(0, 2 * 3_600_000),
)
@settings(max_examples=40, deadline=None)
def test_the_latest_occurrence_is_the_last_of_those_that_follow(expression, day_ms, since, length):
    schedule = cron(expression, ZURICH)
    begin_ms, end_ms = day_ms + since, day_ms + since + length
    counted, at = None, schedule.next_after(begin_ms)
    while at is not None and at <= end_ms:
        counted, at = at, schedule.next_after(at)
    assert schedule.latest(begin_ms, end_ms) == counted


def test_the_latest_of_years_is_found_at_once():
    schedule = cron("*/5 * * * * *", ZURICH)
    until = ms("2026-06-01T10:00:03")
    assert schedule.latest(0, until) == until - 3000
    assert cron("0 0 1 1 *").latest(0, until) == ms("2026-01-01")


def test_intervals_begin_at_the_first_time_or_one_interval_from_now():
    plain = Schedule("s", "T", Message(b"m"), every_ms=1000, since_ms=5000)
    assert [plain.next_after(at) for at in (0, 5000, 6000, 6001)] == [6000, 6000, 7000, 7000]
    bounded = Schedule(
        "s", "T", Message(b"m"), every_ms=1000, since_ms=5000, first_ms=8500, last_ms=9600
    )
    assert [bounded.next_after(at) for at in (0, 8500, 9500)] == [8500, 9500, None]
    assert [bounded.latest(5000, at) for at in (8499, 8600, 10**9)] == [None, 8500, 9500]
    early = Schedule("s", "T", Message(b"m"), every_ms=1000, since_ms=5000, first_ms=300)
    assert early.next_after(0) == 5300


def test_bounds_of_a_cron_expression():
    schedule = cron("0 3 * * *", first_ms=ms("2026-05-02T03:00"), last_ms=ms("2026-05-03T03:00"))
    assert following(schedule, 0, 9) == [f"2026-05-0{day}T03:00:00+00:00" for day in (2, 3)]


# -- definitions


@pytest.fixture
def timed(broker):
    broker.create("T", "FixedTime", 2, groups="default,audit")
    return broker.queue("T")


def in_redis(broker):
    return broker.server.command("HGETALL", schedules_key(broker.key_prefix))


def test_a_schedule_is_kept_as_it_was_given(broker):
    broker.create("K", "Priority", 4, keyed=True)
    message = Message(
        b"\xff\x00", key="k", slot_basis="b", priority=50, time_to_live="2h",
        headers=zip("hn", [b"\xfe", None], strict=True),
    )  # fmt: skip
    last = datetime(2090, 1, 1, tzinfo=UTC)
    made = broker.schedule(
        "s", "K", message, cron=" 0  3 * * * ", timezone=ZURICH, last=last, catch_up="all",
        overlap="skip",
    )  # fmt: skip
    assert broker.schedules() == [made]
    assert (made.cron, made.timezone, made.last_ms) == ("0 3 * * *", ZURICH, ms("2090-01-01"))
    assert made.message.headers == (("h", b"\xfe"), ("n", None))
    assert made.message.time_to_live == 2 * 3_600_000


def test_the_same_call_changes_nothing_and_another_one_goes_on_from_now(broker, timed):
    made = broker.schedule("s", "T", "m", every="1h")
    before = in_redis(broker)
    assert broker.schedule("s", "T", "m", every=3_600_000) == made
    assert in_redis(broker) == before
    more = broker.schedule("s", "T", Message("m", headers={"a": "b"}), every="1h")
    assert more.since_ms == made.since_ms  # its times stay, and so do its occurrences
    other = broker.schedule("s", "T", "m", every="2h")
    assert other.since_ms > made.since_ms
    assert broker.unschedule("s")
    assert not broker.unschedule("s")


def test_intervals_stay_where_they_began(broker, timed):
    """Failed before: a daily report came at the time of the last deployment, or not at all."""
    daily = broker.schedule("s", "T", "m", every="1d")
    begin_ms = past(broker, timed, daily, DAY_MS // 4)
    changes = (
        lambda: broker.pause_schedule("s") and broker.resume_schedule("s"),
        lambda: broker.schedule("s", "T", "version 2", every="1d"),
        lambda: broker.schedule("s", "T", Message("m", slot_basis="b"), every="1d"),
    )
    for change in changes:
        assert change().since_ms >= begin_ms + DAY_MS // 4
        [now] = broker.schedules()
        assert now.next_after(now.since_ms) == begin_ms + DAY_MS
    # Those of an earlier version began at since_ms.
    earlier = {**json.loads(daily.to_json()), "since_ms": begin_ms}
    del earlier["begin_ms"]
    broker.server.command("HSET", schedules_key(broker.key_prefix), "s", json.dumps(earlier))
    changed = broker.schedule("s", "T", "version 3", every="1d")
    assert changed.next_after(changed.since_ms) == begin_ms + DAY_MS
    first = datetime(2090, 1, 1, tzinfo=UTC)
    assert broker.schedule("s", "T", "m", every="1d", first=first).begin_ms is None
    again = broker.schedule("s", "T", "m", every="1d")
    assert again.begin_ms > begin_ms + DAY_MS // 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "cron=None and every=None. Accepted: one of the two"),
        ({"cron": "* * * * *", "every": "1h"}, "Accepted: one of the two"),
        ({"cron": "61 * * * *"}, "cron='61 .*Bad minute.*Accepted: five fields"),
        ({"cron": "0 0 31 2 *"}, "cron='0 0 31 2"),
        ({"cron": 5}, "cron=5"),
        ({"cron": "9" * 5000 + " * * * *"}, "cron="),
        ({"every": "10ms"}, "every='10ms'.*at least 1s"),
        ({"every": "soon"}, "every='soon'"),
        ({"every": True}, "every=True"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "timezone='Mars/Base'.*Europe/Zurich"),
        ({"cron": "* * * * *", "timezone": "../etc"}, "is not a known time zone"),
        ({"every": "1h", "catch_up": "some"}, "catch_up='some'.*none, one, all"),
        ({"every": "1h", "overlap": True}, "overlap=True.*send, skip"),
        ({"every": "1h", "first": datetime(2026, 1, 1)}, "first=.*with a time zone"),
        ({"every": "1h", "last": 5}, "never occurs from now on"),
        ({"every": "1h", "name": "a b"}, "name='a b' is not a name of a schedule"),
        ({"every": "1h", "name": ".."}, r"name='\.\.' is not a name .* not all dots"),
        ({"every": "1h", "message": Message("m", fixed_time=5)}, "fixed_time=5.*delay"),
        ({"every": "1h", "message": Message("m", expires_at=5)}, "expires_at=5.*time_to_live"),
        ({"every": "1h", "message": bytes(LARGEST_MESSAGE_BYTES + 1)}, "65537 bytes. Accepted"),
    ],
)
def test_what_is_not_accepted_is_named(broker, timed, given, said):
    with pytest.raises(InvalidOption, match=said):
        broker.schedule(**{"name": "s", "topic": "T", "message": "m", **given})
    assert not in_redis(broker)


def test_a_message_that_its_topic_refuses_is_refused_at_once(broker, timed):
    broker.create("P", "Priority", 1)
    with pytest.raises(InvalidMessage, match="priority is None"):
        broker.schedule("s", "P", "m", every="1h")
    for bad in ("abc", -5000, [1]):
        with pytest.raises(InvalidMessage, match="delay is"):
            broker.schedule("s", "T", Message("m", delay=bad), every="1h")
    with pytest.raises(InvalidMessage, match=r"time_range is 5, but .* takes fixed_time or delay"):
        broker.schedule("s", "T", Message("m", time_range=5), every="1h")
    with pytest.raises(InvalidMessage, match="content is"):
        broker.schedule("s", "T", "\ud800", every="1h")
    # Failed before: it said "Message 0: ... Nothing was sent."
    said = r"^The message of the schedule s: time_to_live is 'soon'\. Accepted: .* '30s'\.$"
    with pytest.raises(InvalidMessage, match=said):
        broker.schedule("s", "T", Message("m", time_to_live="soon"), every="1h")
    with pytest.raises(UnknownTopic):
        broker.schedule("s", "Missing", "m", every="1h")


def test_one_that_has_ended_stays_as_it_is_and_may_be_extended(broker, timed):
    schedule = broker.schedule("s", "T", "m", every="1s", last=2**45, catch_up="all")
    past(broker, timed, schedule, 100_000, last_ms=schedule.since_ms - 50_000)
    [ended] = broker.schedules()
    again = {"every": "1s", "catch_up": "all"}
    assert broker.schedule("s", "T", "m", last=ended.last_ms, **again) == ended
    with pytest.raises(InvalidOption, match="never occurs from now on"):
        broker.schedule("s", "T", "m", last=ended.last_ms + 1, **again)
    # What was not wanted meanwhile is not caught up.
    assert broker.schedule("s", "T", "m", last=2**45, **again).since_ms > schedule.since_ms


def test_an_unknown_schedule_cannot_be_paused(broker, timed):
    broker.schedule("s", "T", "m", every="1h")
    with pytest.raises(InvalidOption, match=r"name='x' is not a schedule\. Accepted: one of s"):
        broker.pause_schedule("x")


def test_a_topic_takes_its_schedules_along(broker, timed):
    broker.create("Other", "FixedTime", 1)
    broker.schedule("s", "T", "m", every="1s")
    broker.schedule("kept", "Other", "m", every="1h")
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent, "an occurrence")
    broker.delete("T")
    assert [one.name for one in broker.schedules()] == ["kept"]
    left = broker.server.command("KEYS", f"{broker.key_prefix}schedules_*")
    assert left == []


def test_a_schedule_that_goes_to_another_topic_meanwhile_outlives_its_old_one(
    broker, timed, monkeypatch
):
    broker.create("Other", "FixedTime", 1)
    for name in ("altered", "moved", "s"):
        broker.schedule(name, "T", "m", every="1h")
    commands, done = type(broker.server).commands, []

    def interfering(server, asked):
        replies = commands(server, asked)
        if asked[0][:2] == ("HGETALL", schedules_key(broker.key_prefix)) and not done:
            done.append(broker.schedule("moved", "Other", "m", every="1h"))
            broker.pause_schedule("altered")
        return replies

    monkeypatch.setattr(type(broker.server), "commands", interfering)
    broker.delete("T")
    assert broker.schedules() == done


KEPT = json.loads(Schedule("s", "T", Message(b"m"), every_ms=1000).to_json())
OF_ANOTHER_CRONSIM = json.dumps(KEPT | {"every_ms": None, "cron": "L * * * *"})
# What cannot be read, although its version may be this one.
UNREADABLE = [
    "not JSON",
    "[" * 100_000,
    "[]",
    "{}",
    *(
        json.dumps(KEPT | changed)
        for changed in (
            {"version": 99},
            {"message": "m"},
            {"message": {"content": {"base85": "m"}}},
            {"every_ms": "1s"},
            {"every_ms": 0},
            {"first_ms": -(10**30)},
            {"since_ms": None},
            {"catch_up": "some"},
            {"overlap": "queue"},
            {"topic": "a b"},
        )
    ),
]


# What cannot be read of the last occurrence.
NOTES = ["nonsense", "1 2 3", b"\xff 1", "1 " + "9" * 5000, f"1 {10**30}"]


def told_of(broker, shown):
    """The names of those that are left out, if the others are shown."""
    told = []
    assert {one.schedule.name for one in seen(broker, lambda name, _: told.append(name))} == shown
    return told


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_schedule_that_cannot_be_read_is_named_and_keeps_nobody_from_removing(
    broker, timed, text, caplog
):
    broker.schedule("s", "T", "m", every="1h")
    broker.server.command("HSET", schedules_key(broker.key_prefix), "bad", text)
    with pytest.raises(ScriptFailed, match="The schedule bad in rmq_schedules cannot be read"):
        broker.schedule("bad", "T", "m", every="1h")
    # Failed before: nobody saw any schedule.
    for _ in range(2):
        assert [one.name for one in broker.schedules()] == ["s"]
        assert [one.schedule.name for one in seen(broker)] == ["s"]
    assert caplog.text.count("bad is left out: The schedule bad in rmq_schedules cannot") == 1
    assert [found.state for found in check_schedules(broker)] == ["FAIL", "ok"]
    broker.delete("T")
    assert "may be of topic T, which was deleted: The schedule bad in" in caplog.text
    assert broker.unschedule("bad")
    assert broker.schedules() == []


@pytest.mark.parametrize("note", NOTES)
def test_a_last_occurrence_that_cannot_be_read_is_named_and_goes_with_its_schedule(broker, note):
    """Failed before, with a ValueError, for all that look at any schedule."""
    for topic in ("T", "U"):
        broker.create(topic, "FixedTime", 1)
        broker.schedule(f"of-{topic}", topic, "m", every="1h")
    notes = broker.queue("T").keys.schedules(0)
    broker.schedule("s", "T", "m", every="1h")
    broker.server.command("HSET", notes, "s", note)
    assert told_of(broker, {"of-T", "of-U"}) == ["s"]
    [bad, _] = check_schedules(broker)
    assert bad.state == "FAIL"
    assert re.search(r"the schedule s last occurred .* rmq unschedule s", bad.seen)
    [found] = [one for one in broker.schedules() if one.name == "s"]
    assert found.every_ms == 3_600_000
    assert broker.unschedule("s")
    assert broker.server.command("HGET", notes, "s") is None


def test_a_note_that_somebody_breaks_under_a_scheduler_stops_no_other(broker):
    broker.create("T", "FixedTime", 1)
    for name in ("s", "other"):
        broker.schedule(name, "T", name, every="1s")
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent > 1, "occurrences")
        broker.server.command("HSET", broker.queue("T").keys.schedules(0), "s", b"\xff")
        begun = scheduler.sent
        wait_until(lambda: scheduler.sent > begun + 2, "more of the other")


def test_a_schedule_whose_name_is_not_utf_8_goes_with_its_topic(broker, timed):
    """Seen: its deletion was tried again without end."""
    text = broker.schedule("s", "T", "m", every="1h").to_json()
    broker.server.command("HSET", schedules_key(broker.key_prefix), b"\xff", text)
    assert [one.name for one in broker.schedules()] == ["s", "\ufffd"]
    broker.delete("T")
    assert broker.schedules() == []


def test_an_expression_of_another_cronsim_is_told_with_its_schedule(broker, timed):
    """Failed before: rmq schedules did not say which one it was."""
    broker.schedule("s", "T", "m", every="1h")
    broker.server.command("HSET", schedules_key(broker.key_prefix), "odd", OF_ANOTHER_CRONSIM)
    assert told_of(broker, {"s"}) == ["odd"]
    [bad, _] = check_schedules(broker)
    assert (bad.state, bad.seen[:38]) == ("warn", "The schedule odd: cron='L * * * *' is ")


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("cronsim", "The schedule odd: cron needs the package cronsim: pip install"),
        ("zone", "The schedule odd: timezone='Mars/Base' is not a known time zone"),
    ],
)
def test_one_that_this_machine_cannot_compute_hides_no_other(
    broker, timed, monkeypatch, without, said
):
    broker.schedule("s", "T", "m", every="1h")
    odd = broker.schedule("odd", "T", "m", cron="0 3 * * *")
    if without == "cronsim":
        monkeypatch.setitem(sys.modules, "cronsim", None)
    else:
        text = Schedule(**{**vars_of(odd), "timezone": "Mars/Base"}).to_json()
        broker.server.command("HSET", schedules_key(broker.key_prefix), "odd", text)
    assert [one.name for one in broker.schedules()] == ["odd", "s"]
    assert told_of(broker, {"s"}) == ["odd"]
    [bad, _] = check_schedules(broker)
    assert (bad.state, said in bad.seen) == ("warn", True)


def test_one_without_a_slot_in_its_topic_hides_no_other(broker, timed):
    broker.schedule("s", "T", "m", every="1h")
    broker.schedule("odd", "T", "m", every="1h")
    broker.delete("T")
    broker.create("T", "FixedTime", 1, keyed=True)
    broker.schedule("s", "T", Message("m", key="k"), every="1h")
    odd = Schedule("odd", "T", Message(b"m"), every_ms=1000, since_ms=0)
    broker.server.command("HSET", schedules_key(broker.key_prefix), "odd", odd.to_json())
    assert told_of(broker, {"s"}) == ["odd"]


def test_a_note_of_another_type_hides_no_other(broker):
    for topic in ("T", "U"):
        broker.create(topic, "FixedTime", 1)
        broker.schedule(f"of-{topic}", topic, "m", every="1h")
    broker.server.command("SET", broker.queue("T").keys.schedules(0), "somebody else's")
    assert told_of(broker, {"of-U"}) == ["of-T"]


def test_what_a_later_release_has_added_to_a_schedule_is_left_alone(broker, timed):
    made = broker.schedule("s", "T", Message("m", headers={"h": None}), every="1s")
    later = json.loads(made.to_json()) | {"jitter": 5}
    later["message"] |= {"trace": "on"}
    broker.server.command("HSET", schedules_key(broker.key_prefix), "s", json.dumps(later))
    assert broker.schedules() == [made]
    assert run_until_done(broker, lambda: timed.figures().counters["accepted"]) >= 1
    assert broker.unschedule("s")
    assert broker.server.command("KEYS", f"{broker.key_prefix}schedules_*") == []


# -- occurrences. Notes are set by hand, so that no test waits for a time of day.


def past(broker, queue, schedule, ago_ms, **changes):
    """Let a schedule have occurred so long ago. Returns that time, in whole intervals."""
    at_ms = schedule.since_ms - ago_ms
    moved = {"since_ms": at_ms, "begin_ms": schedule.begin_ms and at_ms}
    made = Schedule(**{**vars_of(schedule), **moved, **changes})
    broker.server.command("HSET", schedules_key(broker.key_prefix), made.name, made.to_json())
    return at_ms


def vars_of(schedule):
    return {name: getattr(schedule, name) for name in Schedule.__dataclass_fields__}


def run_until_done(broker, is_done):
    with broker.scheduler() as one, broker.scheduler() as other:
        wait_until(is_done, "the occurrences")
        wait_until(lambda: one.is_running and other.is_running, "both")
    return one.sent + other.sent


def sent(queue):
    entries = [e for slot in queue.slots for e in first_entries(queue.pages("store", slot), 99)]
    return sorted(entries, key=lambda entry: entry.due_time_ms)


def times(queue):
    return [dict(entry.headers)["rmq-scheduled-time"].decode() for entry in sent(queue)]


@pytest.mark.parametrize(("catch_up", "messages"), [("one", 1), ("all", 5), ("none", 0)])
def test_what_was_missed_is_sent_as_wanted(broker, timed, catch_up, messages):
    schedule = broker.schedule("s", "T", "m", every="1h", catch_up=catch_up)
    begin_ms = past(broker, timed, schedule, 5 * 3_600_000 + 120_000)
    total = run_until_done(broker, lambda: seen(broker)[0].late_ms == 0)
    assert total == messages == timed.figures().counters["accepted"]
    assert seen(broker)[0].last_ms == begin_ms + 5 * 3_600_000
    if messages:  # equal messages have merged, and the last body counts
        [entry] = sent(timed)
        assert entry.due_time_ms == begin_ms + 5 * 3_600_000
        assert dict(entry.headers)["rmq-schedule"] == b"s"
        assert times(timed) == [schedule.local_time(entry.due_time_ms).isoformat()]
        assert [e.content for e in sent(timed.of_group("audit"))] == [b"m"]


def test_none_sends_what_is_late_by_less_than_a_minute(broker, timed):
    schedule = broker.schedule("s", "T", "m", every="1h", catch_up="none")
    past(broker, timed, schedule, 3_600_000 + 1000)
    assert run_until_done(broker, lambda: seen(broker)[0].late_ms == 0) == 1


def test_many_that_were_missed_do_not_keep_others_waiting(broker, timed):
    schedule = broker.schedule("many", "T", "m", every="1s", catch_up="all")
    past(broker, timed, schedule, 450_000)
    broker.schedule("other", "T", "o", every="1s")
    total = run_until_done(broker, lambda: all(one.late_ms < 1000 for one in seen(broker)))
    assert total >= 449  # the last one may be due for less than a second


def test_a_delay_is_added_to_the_time_of_the_occurrence(broker, timed):
    schedule = broker.schedule("s", "T", Message("m", delay="10m"), every="1h")
    begin_ms = past(broker, timed, schedule, 3_600_000)
    run_until_done(broker, lambda: seen(broker)[0].late_ms == 0)
    assert [entry.due_time_ms for entry in sent(timed)] == [begin_ms + 3_600_000 + 600_000]


def test_a_run_that_waits_or_is_in_work_is_not_doubled(broker):
    broker.create("K", "FixedTime", 1, keyed=True, groups="default,audit")
    queue = broker.queue("K")
    schedule = broker.schedule("s", "K", Message("p", key="k"), every="1h", overlap="skip")
    accepted = []
    for _ in range(2):
        past(broker, queue, schedule, 3_600_000)
        broker.server.command("DEL", queue.keys.schedules(0))
        run_until_done(broker, lambda: seen(broker)[0].late_ms == 0)
        accepted.append(queue.figures().counters["accepted"])
    with broker.consumer("K", "a") as a, broker.consumer("K", "b", group="audit") as b:
        batch, other = a.poll(), b.poll()
        other.commit()
        for after in (lambda: None, batch.commit):
            after()
            past(broker, queue, schedule, 3_600_000)
            broker.server.command("DEL", queue.keys.schedules(0))
            run_until_done(broker, lambda: seen(broker)[0].late_ms == 0)
            accepted.append(queue.figures().counters["accepted"])
    assert accepted == [1, 1, 1, 2]


def test_occurrences_that_wait_for_the_last_one_are_all_delivered(broker, caplog):
    """Failed before: those that were missed merged, so that a consumer got the last one only."""
    broker.create("K", "FixedTime", 1, groups="default,audit", retry_backoff="1ms")
    queue = broker.queue("K")
    caplog.set_level("INFO", "rmq_spark")
    schedule = broker.schedule("s", "K", "m", every="1h", catch_up="all", overlap="wait")
    begin_ms = past(broker, queue, schedule, 3 * 3_600_000)
    got, other = [], []
    with (
        broker.consumer("K", "a") as a,
        broker.consumer("K", "b", group="audit") as b,
        broker.scheduler() as one,
        broker.scheduler() as two,
    ):

        def is_done():
            batch = a.poll()
            got.extend(message.due_time_ms for message in batch if message.delivery_count > 1)
            if any(message.delivery_count == 1 for message in batch):  # each fails once
                batch.rollback(batch)
            else:
                batch.commit()
            batch = b.poll()
            other.extend(message.due_time_ms for message in batch)
            batch.commit()
            return one.sent + two.sent == 3 and not queue.figures().messages and len(other) == 3

        wait_until(is_done, "the occurrences")
    assert other == [begin_ms + hours * 3_600_000 for hours in (1, 2, 3)]
    assert len(got) == 3
    assert queue.figures().counters["merged"] == 0
    assert "waits until the last message is done" in caplog.text


def test_a_schedule_that_waits_for_its_last_message_is_not_late(broker):
    """Failed before: doctor and the alert said that no scheduler was running."""
    broker.create("K", "FixedTime", 1, groups="audit,mail")
    queue = broker.queue("K")
    schedule = broker.schedule("s", "K", "m", every="1h", catch_up="all", overlap="wait")
    past(broker, queue, schedule, 3 * 3_600_000)
    assert (seen(broker)[0].waits, seen(broker)[0].late_ms >= 3_600_000) == (False, True)
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent, "the first occurrence")
    assert (seen(broker)[0].waits, seen(broker)[0].late_ms) == (True, 0)
    assert [finding.state for finding in check_schedules(broker)] == ["ok"]
    for group in ("audit", "mail"):
        assert seen(broker)[0].waits
        with broker.consumer("K", "a", group=group) as consumer:
            consumer.poll().commit()
    assert (seen(broker)[0].waits, seen(broker)[0].late_ms >= 3_600_000) == (False, True)
    assert [finding.state for finding in check_schedules(broker)] == ["warn"]


def test_a_pause_sends_nothing_and_what_it_kept_back_stays_back(broker, timed):
    schedule = broker.schedule("s", "T", "m", every="1h")
    past(broker, timed, schedule, 3_600_000)
    broker.pause_schedule("s")
    broker.schedule("other", "T", "o", every="1s")
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent, "an occurrence of the other")
        assert broker.schedule("s", "T", "m", every="1h").paused  # as at a new deployment
        broker.resume_schedule("s")
        had = scheduler.sent
        wait_until(lambda: scheduler.sent > had + 1, "occurrences of the other")
    assert {entry.content for entry in sent(timed)} == {b"o"}


@pytest.mark.parametrize("made_ahead", [False, True])
def test_schedules_go_on_if_redis_clock_is_set_back(broker, timed, monkeypatch, caplog, made_ahead):
    """Failed before: they stood still until the clock had caught up."""
    real, ahead_ms = broker.server.now_ms, [3_600_000]
    monkeypatch.setattr(broker.server, "now_ms", lambda: real() + ahead_ms[0])
    made = broker.schedule("s", "T", "m", every="1s")
    if not made_ahead:
        past(broker, timed, made, 3_600_000)
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent > 1, "occurrences")
        ahead_ms[0] = 0
        had = scheduler.sent
        wait_until(lambda: scheduler.sent > had + 1, "occurrences after the clock was set back")
    assert caplog.text.count("Redis' clock was set back: the schedule s goes on") == 1
    [shown] = seen(broker)
    assert shown.last_ms <= real()
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent > 1, "occurrences of the next scheduler")


@pytest.mark.parametrize("of", ["note", "definition"])
def test_a_scheduler_that_starts_after_the_clock_was_set_back_goes_on(broker, timed, of):
    made = broker.schedule("s", "T", "m", every="1s")
    now_ms, key = broker.server.now_ms(), timed.keys.schedules(timed.definition.slot_of(b"m"))
    if of == "note":
        broker.server.command("HSET", key, "s", f"{made.since_ms} {now_ms + 3_600_000}")
    else:
        past(broker, timed, made, -3_600_000)
    assert seen(broker)[0].next_ms < now_ms + 60_000
    assert run_until_done(broker, lambda: timed.figures().counters["accepted"] > 1) > 1


def test_a_note_of_a_clock_that_is_a_little_ahead_counts(broker, timed):
    made = broker.schedule("s", "T", "m", every="1s")
    broker.schedule("other", "T", "o", every="1s")
    key = timed.keys.schedules(timed.definition.slot_of(b"m"))
    note = f"{made.since_ms} {broker.server.now_ms() + 55_000}".encode()
    broker.server.command("HSET", key, "s", note)
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent > 1, "occurrences of the other")
    assert broker.server.command("HGET", key, "s") == note


def test_a_change_counts_within_a_second_or_so(broker, timed):
    broker.schedule("s", "T", "m", every="1h")
    with broker.scheduler() as scheduler:
        broker.schedule("s", "T", "new", every="1s")
        wait_until(lambda: scheduler.sent > 1, "occurrences")
        assert broker.unschedule("s")
        later = broker.schedule("s", "T", "again", every="1s")
        had = scheduler.sent
        wait_until(lambda: scheduler.sent > had + 1, "occurrences of the next of this name")
    assert {entry.content for entry in sent(timed)} == {b"new", b"again"}
    note = broker.server.command(
        "HGET", Keys("T", broker.key_prefix).schedules(timed.definition.slot_of(b"again")), "s"
    )
    assert int(note.split()[0]) == later.since_ms


def test_one_that_cannot_send_is_named_once_and_keeps_no_other_back(broker, timed, caplog):
    broker.create("P", "Priority", 1)
    broker.schedule("bad", "P", Message("m", priority=50), every="1s")
    broker.schedule("good", "T", "m", every="1s")
    server, key = broker.server, f"{broker.key_prefix}rmq_topics"
    server.command("HDEL", key, "P")  # by hand, as it were: its schedules stay
    with caplog.at_level(logging.WARNING), broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent > 2, "occurrences")
    complaints = [line for line in caplog.messages if "bad" in line]
    assert len(complaints) == 1
    assert "The topic P does not exist" in complaints[0]
    assert [one.next_ms is not None for one in seen(broker)] == [True, True]


@pytest.mark.parametrize(
    "key",
    [
        "T_0",
        "schedules_{T_0}",
        *UNREADABLE[:4],
        OF_ANOTHER_CRONSIM,
        *NOTES,
    ],
)
def test_a_key_that_somebody_has_broken_stops_no_other_and_is_named_once(broker, key, caplog):
    for topic in ("T", "U"):
        broker.create(topic, "FixedTime", 1)
        broker.schedule(f"of-{topic}", topic, "m", every="1s")
    command, prefix = broker.server.command, broker.key_prefix
    if key in NOTES:
        command("HSET", broker.queue("T").keys.schedules(0), "of-T", key)
    elif key.startswith(("T", "schedules")):
        command("SET", f"{prefix}{key.replace('{', '{' + prefix)}", "somebody else's")
    else:
        command("HSET", schedules_key(prefix), "of-T", key)
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent > 1, "occurrences")
        begun = scheduler.sent
        wait_until(lambda: scheduler.sent > begun + 2, "more, while definitions are read again")
    assert broker.queue("U").figures().counters["accepted"] > 3
    assert len([line for line in caplog.messages if "of-T sends nothing" in line]) == 1


def test_a_change_that_cannot_run_ends_what_was_there(broker, timed):
    broker.schedule("s", "T", "m", every="1s")
    broker.schedule("other", "T", "o", every="1s")
    with broker.scheduler() as scheduler:
        wait_until(lambda: timed.figures().counters["accepted"] > 1, "occurrences")
        changed = Schedule(**{**vars_of(broker.schedules()[1]), "timezone": "Mars/Base"})
        broker.server.command("HSET", schedules_key(broker.key_prefix), "s", changed.to_json())
        wait_until(lambda: scheduler._complaints, "the complaint")
        assert [*scheduler._running] == ["other"]


def test_a_pause_counts_although_much_was_missed(broker, timed):
    for number in range(50):
        schedule = broker.schedule(f"s{number}", "T", "m", every="1s", catch_up="all")
        past(broker, timed, schedule, 3_600_000)
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent, "occurrences")
        for number in range(50):
            broker.pause_schedule(f"s{number}")
        wait_until(lambda: not scheduler._next_ms, "the pauses to be read")
        had = scheduler.sent
    assert scheduler.sent <= had + 100  # a turn of the one that was at work
    assert had < 50 * 3600


def test_a_topic_that_was_made_in_another_way_gets_them_in_its_own_slots(broker, timed):
    broker.schedule("s", "T", "m", every="1s")
    with broker.scheduler() as scheduler:
        wait_until(lambda: scheduler.sent, "an occurrence")
        kept = in_redis(broker)
        broker.delete("T")
        broker.create("T", "Priority", 16)
        broker.server.command(
            "HSET", schedules_key(broker.key_prefix), *itertools.chain(*fields_of(kept))
        )
        had = scheduler.sent
        broker.schedule("s", "T", Message("n", priority=50), every="1s")
        wait_until(lambda: scheduler.sent > had, "an occurrence in the new topic")
    queue = broker.queue("T")
    slot = queue.definition.slot_of(b"n")
    assert [e.content for e in first_entries(queue.pages("store", slot), 9)] == [b"n"]


def test_it_goes_on_after_redis_was_away(own_redis):
    with connect(own_redis.url, patience_s=0.2) as broker:
        broker.create("T", "FixedTime", 1)
        broker.schedule("s", "T", "m", every="1s")
        with broker.scheduler() as scheduler:
            wait_until(lambda: scheduler.sent, "an occurrence")
            own_redis.kill()
            wait_until(lambda: not own_redis.runs, "its end")
            own_redis.start()  # with nothing in it: it stores nothing on disk
            broker.create("T", "FixedTime", 1)
            broker.schedule("s", "T", "m", every="1s")
            had = scheduler.sent
            wait_until(lambda: scheduler.sent > had, "an occurrence after the outage")
            assert scheduler.error is None


def test_a_scheduler_runs_once(broker):
    scheduler = broker.scheduler()
    with scheduler:
        assert scheduler.is_running
    with pytest.raises(Exception, match="The scheduler works already, or has ended"):
        scheduler.__enter__()


def test_in_asyncio(redis_url, broker):
    async def main():
        async with await aio.connect(redis_url, key_prefix=broker.key_prefix) as found:
            await found.create("T", "FixedTime", 1)
            await found.schedule("s", "T", "m", every="1h")
            await found.pause_schedule("s")
            await found.resume_schedule("s")
            listed = await found.schedules()
            return listed, await found.unschedule("s")

    listed, removed = asyncio.run(main())
    assert ([one.name for one in listed], removed) == (["s"], True)
