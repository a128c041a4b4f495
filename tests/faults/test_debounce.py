"""A short round of `make debounce`, and what makes a round fail."""

from collections import Counter

import pytest

from .. import quick_spark, servers
from ..processes import NEEDS_PROC
from ..rounds.driver import Lane
from .debounce import DebounceRound
from .latest import Attempt, Outcome, named
from .updates import Updates

KEYS, VERSIONS = ("a", "b"), range(1, 4)
# What is right: batch 0 was made twice, and both keys end with their last payload.
RIGHT = [(0, "a1 b1"), (0, "a1 b1"), (1, "a3 b2"), (2, "b3")]
UPDATES = len(KEYS) * len(VERSIONS)


def attempt(batch, texts, ordinal=0):
    claim = f"reader:{batch + 1}:{ordinal}:7"
    return Attempt(batch, [(text[0], text[1:], claim) for text in texts.split()])


def judged(attempts, merged=1, sent=UPDATES, sink=None):
    """The outcome of some attempts, whose last one of each batch the sink holds."""
    outcome = Outcome(Counter(), len(KEYS), sent, merged, rolled_back=0)
    held = {each.batch: each.payloads() for each in attempts}
    outcome.judge(KEYS, VERSIONS, attempts, held if sink is None else sink)
    return outcome


def of(rows):
    return [attempt(batch, texts) for batch, texts in rows]


def test_each_update_is_merged_or_delivered_and_a_replay_is_counted():
    outcome = judged(of(RIGHT))
    assert outcome.faults_found(UPDATES) == []
    counts = (outcome.delivered, outcome.batches, outcome.replays)
    assert counts == (5, 3, 1)


@pytest.mark.parametrize(
    ("rows", "merged", "text"),
    [
        ([*RIGHT[:3], (2, "")], 2, "the last payload of b is lost"),
        ([*RIGHT[:3], (2, "b3"), (3, "b1")], 0, "of b is not the last one delivered"),
        (
            [*RIGHT[:2], (1, "a3 b3"), (2, "b2")],
            1,
            "after a newer payload, or twice, came one of b",
        ),
        ([*RIGHT, (3, "b3")], 0, "after a newer payload, or twice, came one of b"),
        ([*RIGHT, (3, "c1")], 0, "payloads were delivered that were never sent: c: 1"),
        ([*RIGHT[:2], (1, "a3 b2"), (1, "a3"), (2, "b3")], 2, "came again with other messages: 1"),
        (RIGHT, 0, "1 updates were neither merged nor delivered"),
        ([(0, "a1 b1"), (1, "a2 b2"), (2, "a3 b3")], 0, "nothing was debounced"),
    ],
)
def test_what_is_wrong_is_said(rows, merged, text):
    found = judged(of(rows), merged).faults_found(UPDATES)
    assert any(text in each for each in found), found


def test_a_sink_that_holds_something_else_than_was_delivered_is_wrong():
    sink = {each.batch: each.payloads() for each in of(RIGHT)} | {7: Counter({("a", 2): 1})}
    assert judged(of(RIGHT), sink=sink).altered == {7}


def test_updates_that_redis_has_not_accepted_are_wrong():
    (text,) = judged(of(RIGHT), sent=5, merged=0).faults_found(UPDATES)
    assert text == "Redis has accepted 5 updates of 6"


def test_claims_of_a_slot_come_in_their_order():
    """A batch may have two payloads of a key, in two claims; rows of tasks come in any order."""
    later, earlier = attempt(0, "a2", ordinal=1), attempt(0, "a1")
    assert Attempt(0, [*later.rows, *earlier.rows]).in_order() == [("a", 1), ("a", 2)]


def test_of_many_keys_some_are_named():
    assert named({f"key-{number}" for number in range(7)}).endswith("key-4 and 2 more")


@pytest.mark.parametrize(("updates", "versions"), [(100, range(8, 108)), (7, range(1, 8))])
def test_the_last_version_is_one_that_fails_first(tmp_path, updates, versions):
    assert Updates(tmp_path, 2, updates, "seed").versions == versions


@pytest.mark.rounds
@pytest.mark.timeout(900)  # whole minutes on a machine that has much else to do
@NEEDS_PROC
def test_the_last_payload_of_each_key_comes_last_whatever_is_killed(tmp_path):
    if not servers.executables():
        servers.do_without()
    lane = Lane(tmp_path / "lane", {"spark.driver.extraJavaOptions": quick_spark.java_options()})
    round_ = DebounceRound(lane, tmp_path / "round", "7", keys=20, updates=20)
    try:
        assert round_.play(kills=3) == []
    finally:
        lane.abandon()
    assert round_.outcome.sent == 400
    assert round_.outcome.merged > 0
