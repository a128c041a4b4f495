"""How many messages fall due when, as bars."""

import pytest

from rmq_spark import Message
from rmq_spark.inspect.histogram import TIME_WIDTHS, Bar, fitted, time_bars
from rmq_spark.protocol.pages import Bounds
from rmq_spark.topics.keys import HIGHEST_SCORE

from ..seeding import suspect
from .running import bury

NEW_YEAR_MS = 1_893_456_000_000  # 2030-01-01
HOUR_MS = 3_600_000


def below(times):
    """The counting that Redis does, of a plain list."""
    return lambda edges: [sum(time < edge for time in times) for edge in edges]


@pytest.mark.parametrize(
    "times",
    [
        [1],
        [HIGHEST_SCORE],
        [0, HIGHEST_SCORE],
        list(range(1_000_000, 1_000_300, 7)),
        [NEW_YEAR_MS + n * HOUR_MS for n in range(40)],
        [NEW_YEAR_MS, NEW_YEAR_MS + 1],
    ],
)
def test_bars_count_every_message_once_and_fit_the_range(times):
    bars = fitted(below(times), Bar(0, HIGHEST_SCORE + 1, len(times)), TIME_WIDTHS)
    assert 1 <= len(bars) <= 20
    assert bars[0].messages
    assert bars[-1].messages
    assert [bar.messages for bar in bars] == [
        sum(bar.low <= time < bar.high for time in times) for bar in bars
    ]
    assert sum(bar.messages for bar in bars) == len(times)
    assert [bar.high for bar in bars[:-1]] == [bar.low for bar in bars[1:]]


def test_without_messages_there_are_no_bars():
    assert fitted(below([]), Bar(0, HIGHEST_SCORE + 1, 0), TIME_WIDTHS) == []
    assert time_bars(below([]), 5, Bounds()) == []


def test_what_is_due_and_what_comes_later_are_bars_of_their_own():
    times = [*range(0, 100, 10), 1000, 2000, 10**12]
    bars = time_bars(below(times), 50, Bounds(None, 3000))
    assert bars[0] == Bar(None, 51, 6)
    assert bars[-1] == Bar(3000, None, 1)
    assert bars[-2].high == 3000  # an end that is asked for stays, though nothing is there
    assert sum(bar.messages for bar in bars) == len(times)


def test_messages_are_counted_by_the_hour(rmq):
    queue = rmq.topic(groups=["", "audit"])
    queue.send([Message(f"m{n}", fixed_time=NEW_YEAR_MS + n % 3 * HOUR_MS) for n in range(30)])
    queue.send(["due", "due, too"], fixed_time=99)
    queue.server.client.zadd(queue.keys.retry(0), {"retry": NEW_YEAR_MS + HOUR_MS + 5})
    bury(queue, b"dead")
    span = ("--from", "2030-01-01T00:00Z", "--until", "2030-01-01T03:00:00+00:00")
    told = rmq("due", "Orders", "--json", *span).json
    assert (told["topic"], told["group"]) == ("Orders", "default")
    assert (told["messages"], told["dueNow"]) == (33, 2)
    bars = told["bars"]
    assert bars[0] == {
        "dueTimeFrom": None,
        "dueTimeUntil": "2030-01-01T00:00:00.000Z",
        "messages": 2,
    }
    full = [bar for bar in bars[1:] if bar["messages"]]
    assert [(bar["dueTimeFrom"], bar["messages"]) for bar in full] == [
        ("2030-01-01T00:00:00.000Z", 10),
        ("2030-01-01T01:00:00.000Z", 11),  # with one that waits for a retry
        ("2030-01-01T02:00:00.000Z", 10),
    ]
    audit = rmq("due", "Orders", "--json", "--group", "audit").json
    assert sum(bar["messages"] for bar in audit["bars"]) == 32
    assert audit["bars"][0]["messages"] == 2
    text = rmq("due", "Orders", *span)
    assert text.out.startswith("Orders: 33 messages waiting, 2 due now\n")
    assert max(line.count("█") for line in text.out.splitlines()) == 40
    plain = rmq.begin("due", "Orders", *span, PYTHONIOENCODING="latin-1", PYTHONUTF8="0").out
    assert max(line.count("#") for line in plain.splitlines()) == 40


def test_messages_of_a_priority_topic_are_counted_by_priority(rmq):
    queue = rmq.topic("Ranked", "Priority")
    queue.send([Message(f"m{n}", priority=(17, 500, 900)[n % 3]) for n in range(9)])
    queue.server.client.zadd(
        queue.keys.store(0), {"rolled back": 3, "snoozed": -17, "suspect": suspect(4, 1)}
    )
    queue.server.client.zadd(queue.keys.retry(0), {"waits": 10**12 + 3})
    bars = rmq("due", "Ranked", "--json").json["bars"]
    assert [bar["messages"] for bar in bars if bar["messages"]] == [3, 3, 3, 4]
    first, *_, last, again = bars
    assert first["priorityFrom"] <= 900 <= first["priorityTo"]
    assert last["priorityFrom"] == 17
    assert again == {"priorityFrom": None, "priorityTo": None, "messages": 4}
    assert "rolled back" in rmq("due", "Ranked").out
    refused = rmq("due", "Ranked", "--until", "1h")
    assert (refused.code, "is Priority" in refused.err) == (2, True)


def test_an_empty_topic_and_a_span_that_is_none(rmq):
    rmq.topic()
    done = rmq("due", "Orders")
    assert (done.code, done.out) == (3, "Orders: 0 messages waiting\n")
    assert rmq("due", "Orders", "--json").json["bars"] == []
    wrong = rmq("due", "Orders", "--from", "2h", "--until", "1h")
    assert (wrong.code, "--from is not before --until" in wrong.err) == (2, True)


def test_the_highest_priority_of_all_is_counted(rmq):
    queue = rmq.topic("Urgent", "Priority")
    queue.send(["highest", "too"], priority=HIGHEST_SCORE)
    queue.send(["lowest"], priority=17)
    assert sum(bar["messages"] for bar in rmq("due", "Urgent", "--json").json["bars"]) == 3
