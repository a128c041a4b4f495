"""What makes a cell fail."""

from collections import Counter

import pytest

from ..rounds.ledger import Feed
from .verdict import HEADINGS, Verdict, overtaken

SENT = {"a", "b", "c"}
ONCE = [("a", 1), ("b", 1), ("c", 2)]


def verdict(rows, promise="exactly once", forgettable=frozenset(), **injected):
    made = Verdict("a fault", "parquet", "60s", promise)
    made.injected = Counter({"read": 2, "write": 1, "commit": 2, **injected})
    made.compare(SENT, rows, forgettable)
    return made


def test_each_message_once_and_a_retry_among_them_is_what_is_wanted():
    assert verdict(ONCE).faults_found() == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (ONCE[1:], "1 lost, 0 unexpected"),
        ([*ONCE, ("d", 1)], "0 lost, 1 unexpected"),
        ([*ONCE, ("a", 2), ("b", 2)], "2 duplicated where exactly once is promised"),
        ([(content, 1) for content in SENT], "no message was delivered a second time"),
    ],
)
def test_messages_that_are_missing_new_or_too_many_fail_it(rows, found):
    (text,) = verdict(rows).faults_found()
    assert found in text


def test_duplicates_are_counted_but_allowed_where_nothing_else_is_promised():
    counted = verdict([*ONCE, ("a", 2)], "at least once")
    assert (counted.duplicated, counted.faults_found()) == (1, [])


@pytest.mark.parametrize(
    ("injected", "found"),
    [
        ({"read": 1}, ["injected 4 times, needed 5"]),
        ({"write": 0, "read": 3}, ["never injected inside a write"]),
    ],
)
def test_a_fault_that_hit_too_seldom_fails_it(injected, found):
    assert verdict(ONCE, **injected).faults_found() == found


@pytest.mark.parametrize(
    ("rows", "lost", "faults"),
    [
        (ONCE, "0", 0),  # what may be forgotten, but was in the sink by then
        (ONCE[1:], "0 (1 forgotten)", 0),
        (ONCE[2:], "1 (1 forgotten)", 1),
        ([*ONCE[1:], ("b", 1)], "0 (1 forgotten)", 0),  # Redis forgot that it was committed
    ],
)
def test_what_redis_has_forgotten_is_no_loss_but_all_else_is(rows, lost, faults):
    fallen_back = verdict(rows, "nothing accepted after it is lost", forgettable={"a"})
    assert fallen_back.cells()[HEADINGS.index("lost")] == lost
    assert len(fallen_back.faults_found()) == faults


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(7, 1, 1), (8, 2, 1), (7, 3, 2)], 0),
        ([(7, 1, 1), (7, 3, 2), (7, 2, 10)], 1),  # batches are numbers, not texts
        ([(7, 3, 1), (7, 1, 2), (7, 2, 3)], 2),
        ([(7, 3, 1), (7, 3, 2)], 0),  # a duplicate, which is counted elsewhere
    ],
)
def test_a_payload_that_comes_behind_a_newer_one_of_its_key_is_counted(rows, found):
    assert overtaken(rows) == found
    keyed = verdict(ONCE)
    keyed.overtaken = overtaken(rows)
    assert len(keyed.faults_found()) == (found > 0)


def test_all_payloads_of_a_key_but_the_last_are_superseded(tmp_path):
    feed = Feed(tmp_path, keys=3)
    for count in (3, 3, 1):
        feed.give(count)
    last = {"order-00000004", "order-00000005", "order-00000006"}
    assert feed.contents() - feed.superseded() == last


def test_a_query_that_stops_where_it_must_go_on_fails_it():
    stopped = verdict(ONCE)
    stopped.stopped.append("LeaseLost: claim c:1:0 is gone")
    (text,) = stopped.faults_found()
    assert "must go on: LeaseLost: claim c:1:0 is gone" in text


def test_spark_reads_files_in_the_order_in_which_they_were_laid_down(tmp_path):
    """It sorts them by whole ms; two within one once came in reverse, and so did their payloads."""
    feed = Feed(tmp_path, keys=3)
    for _ in range(50):
        feed.give(1)
    files = sorted(feed.source.glob("*.parquet"))
    times = [file.stat().st_mtime_ns // 1_000_000 for file in files]
    assert times == sorted(set(times))
