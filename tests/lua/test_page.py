"""Looking at a queue page by page, without taking anything."""

import itertools

import pytest

from rmq_spark.client import connect
from rmq_spark.options import QUEUE
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import (
    UNBOUNDED,
    Bounds,
    Entry,
    QueueKind,
    first_entries,
    pages_after_each_other,
)

from ..seeding import FAR_MS, LONG_MS, Slot, numbered

STORE, PREPARE, RETRY, DEAD = QueueKind


def entries(slot, kind, scores=None):
    given = () if scores is None else (scores,)
    return first_entries(slot.queue.pages(kind, 0, *given), 10**9)


def contents(slot, kind, scores=None):
    return [entry.content for entry in entries(slot, kind, scores)]


def test_a_store_shows_due_times_and_what_is_left_of_retries(new_slot):
    slot = new_slot(max_retries=5)
    slot.put({b"retried": 3, b"first": 2000, b"far": FAR_MS})
    assert entries(slot, STORE) == [
        Entry("store", 0, b"retried", None, None, 3, None, None, None, None),
        Entry("store", 0, b"first", 2000, None, 5, None, None, None, None),
        Entry("store", 0, b"far", FAR_MS, None, 5, None, None, None, None),
    ]


def test_priorities_are_shown_as_such(new_slot):
    slot = new_slot("Priority")
    slot.put({b"low": 17, b"high": 2**53, b"retried": 16})
    assert [(e.content, e.due_time_ms, e.priority) for e in entries(slot, STORE)] == [
        (b"high", None, 2**53),
        (b"low", None, 17),
        (b"retried", None, None),
    ]


def test_prepared_messages_show_who_holds_them_since_when_and_their_first_due_time(new_slot):
    slot = new_slot(max_retries=5)
    slot.put({b"retried": 3, b"first": 2000, b"second": 3000})
    slot.claim("a", limit=2)
    slot.wait_past(slot.records["a:1:0"].made)
    slot.claim("b", limit=1)
    made = [slot.records[name].made for name in ("a:1:0", "b:1:0")]
    found = entries(slot, PREPARE)
    assert [entry.prepared_at_ms for entry in found] == [made[0], made[0], made[1]]
    assert [entry._replace(prepared_at_ms=None) for entry in found] == [
        Entry("prepare", 0, b"retried", None, None, 2, None, None, "a", None),
        Entry("prepare", 0, b"first", 2000, None, 5, None, None, "a", None),
        Entry("prepare", 0, b"second", 3000, None, 5, None, None, "b", None),
    ]


def test_what_was_rolled_back_out_of_a_claim_does_not_move_the_others_due_times(slot):
    slot.put_due(numbered(4))
    slot.claim()
    slot.rollback([numbered(4)[1]])
    assert [(e.content, e.due_time_ms) for e in entries(slot, PREPARE)] == [
        (b"m00000", 1000),
        (b"m00002", 1002),
        (b"m00003", 1003),
    ]


def test_prepared_priorities_are_kept(new_slot):
    slot = new_slot("Priority")
    slot.put({b"low": 17, b"high": 2**53})
    slot.claim()
    assert [e.priority for e in entries(slot, PREPARE)] == [17, 2**53]


def test_prepared_messages_show_the_retries_that_replays_have_left(new_slot):
    slot = new_slot(max_retries=5)
    slot.put({b"retried": 3, b"first": 2000, b"last": 1})
    slot.claim()
    slot.claim(run=2)
    shown = {entry.content: entry.retries_left for entry in entries(slot, PREPARE)}
    assert shown == {b"retried": 1, b"first": 4, b"last": 0}


def test_prepared_messages_show_the_retries_of_the_topic_when_they_were_claimed(new_slot):
    slot = new_slot(max_retries=5)
    slot.put({b"first": 2000})
    slot.claim()
    slot.broker.alter("T0", max_retries=9)
    slot.queue = slot.broker.queue("T0")
    assert [entry.retries_left for entry in entries(slot, PREPARE)] == [5]


def test_claims_made_from_a_time_on_and_before_another_are_shown(slot):
    slot.put_due(numbered(3))
    made = []
    for seq in (1, 2, 3):
        slot.claim(seq=seq, limit=1)
        made.append(slot.records[f"a:{seq}:0"].made)
        slot.wait_past(made[-1])
    assert contents(slot, PREPARE, Bounds(made[1], made[2])) == [numbered(3)[1]]
    assert contents(slot, PREPARE, Bounds(low=made[1])) == numbered(3)[1:]
    assert contents(slot, PREPARE, Bounds(high=made[1])) == numbered(1)
    assert contents(slot, PREPARE, Bounds(high=made[0])) == []


def test_a_claim_that_was_settled_in_the_meantime_is_passed_over(slot):
    slot.put_due(numbered(3))
    for seq in (1, 2, 3):
        slot.claim(seq=seq, limit=1)
        slot.wait_past(slot.records[f"a:{seq}:0"].made)
    pages = slot.queue.pages(PREPARE, 0)
    assert next(pages).contents == numbered(1)
    slot.commit(seq=2)
    assert [page.contents for page in pages] == [numbered(3)[2:]]


def test_a_retry_queue_shows_when_the_wait_ends(slot):
    slot.put_waiting({b"m": 5_004})
    assert entries(slot, RETRY) == [Entry("retry", 0, b"m", 5000, None, 4, None, None, None, None)]


def test_a_dead_queue_shows_times_of_death(slot):
    slot.bury(b"m", b"n")
    assert entries(slot, DEAD) == [
        Entry("dead", 0, name, None, None, 0, None, 1, "a", "Broken: by hand")
        for name in (b"m", b"n")
    ]


def test_the_deaths_of_messages_that_are_read_at_once_are_read_at_once(own_redis):
    dead = numbered(100)
    with connect(own_redis.url) as broker:
        slot = Slot(broker, "T")
        slot.bury(*dead[:40], *dead[41:])
        slot.redis.zadd(slot.keys.dead(0), {dead[40]: 1})  # as an earlier version left it
        slot.redis.config_resetstat()
        reasons = {entry.content: entry.reason for entry in entries(slot, DEAD)}
        calls = slot.redis.info("commandstats")
    assert "cmdstat_hget" not in calls
    assert calls["cmdstat_hmget"]["calls"] == calls["cmdstat_zrange"]["calls"] < 20
    assert reasons == {**dict.fromkeys(dead, "Broken: by hand"), dead[40]: None}


def test_nothing_is_taken_or_changed(slot):
    slot.put_due(numbered(5))
    slot.claim(limit=2)
    slot.bury(b"dead")
    before = slot.dump()
    assert [len(entries(slot, kind)) for kind in QueueKind] == [3, 2, 0, 1]
    assert slot.dump() == before


def test_scores_are_from_the_lowest_on_and_below_the_highest(slot):
    slot.put_due(numbered(6), 1000)
    assert contents(slot, STORE, Bounds(1002, 1004)) == numbered(2, start=2)
    assert contents(slot, STORE, Bounds(low=1004)) == numbered(2, start=4)
    assert contents(slot, STORE, Bounds(high=1002)) == numbered(2)
    assert contents(slot, STORE, Bounds(1004, 1002)) == []
    assert contents(slot, STORE, Bounds(2000, 3000)) == []


def test_a_page_ends_after_so_many_entries(slot):
    slot.put_due(numbered(7))
    page, more = slot.queue.ask(reading.page, STORE, 0, most=3)
    assert (page.contents, more) == (numbered(3), True)
    page, more = slot.queue.ask(reading.page, STORE, 0, after=(1002, numbered(3)[2]), most=4)
    assert (page.contents, more) == (numbered(4, start=3), False)


def test_a_page_ends_soon_after_so_many_bytes(slot):
    large = [name + bytes(400_000) for name in numbered(20)]
    slot.put_due(large)
    page, more = slot.queue.ask(reading.page, STORE, 0)
    assert (len(page.contents), more) == (3, True)
    assert contents(slot, STORE) == large


@pytest.mark.parametrize("most", [1, 2, 5, 100])
def test_pages_follow_each_other_without_gap_or_repetition(slot, most):
    slot.put({content: 1000 + rank // 4 for rank, content in enumerate(numbered(30))})
    seen, after, more = [], None, True
    while more:
        page, more = slot.queue.ask(reading.page, STORE, 0, Bounds(1001), after, most=most)
        seen += page.contents
        after = (page.scores[-1], page.contents[-1])
    assert seen == numbered(26, start=4)


def test_prepared_messages_are_paged_claim_by_claim(slot):
    slot.put_due(numbered(700))
    for seq in range(1, 8):
        slot.claim(seq=seq, limit=100)
        slot.wait_past(slot.records[f"a:{seq}:0"].made)
    seen = []
    for claim in slot.queue.ask(reading.records, 0):
        after, more = None, True
        while more:
            page, more = slot.queue.ask(reading.page, PREPARE, 0, UNBOUNDED, after, claim, 64)
            seen += page.entries()
            after = (page.scores[-1], page.contents[-1])
    assert [entry.content for entry in seen] == contents(slot, PREPARE) == numbered(700)
    assert [entry.due_time_ms for entry in seen] == list(range(1000, 1700))


def test_a_claim_larger_than_a_page_is_shown_whole(slot):
    slot.put({content: 1000 + rank // 4 for rank, content in enumerate(numbered(8192))})
    slot.claim()
    pages = list(slot.queue.pages(PREPARE, 0))
    assert len(pages) == 8
    assert [content for page in pages for content in page.contents] == numbered(8192)
    assert {entry.consumer for page in pages for entry in page.entries()} == {"a"}


def in_small_pages(slot, most, meanwhile):
    """All contents shown, where something happens between one page and the next."""

    def read(after):
        meanwhile(after)
        return slot.queue.ask(reading.page, STORE, 0, Bounds(), after, most=most)

    shown = itertools.islice(pages_after_each_other(read), 1000)
    return [content for page in shown for content in page.contents]


def test_priorities_come_in_the_order_of_delivery_page_by_page(new_slot):
    """Failed before: the lowest came first, so a copy of the topic reversed equal ones."""
    slot = new_slot("Priority")
    slot.queue.send(numbered(40), priority=20)
    slot.queue.send([b"urgent"], priority=30)
    order = [b"urgent", *numbered(40)]
    for most in (1, 7, 41, 100):
        assert in_small_pages(slot, most, lambda after: None) == order
    assert contents(slot, STORE) == order


def test_of_equal_scores_none_is_missed_or_repeated_in_descending_order(new_slot):
    slot = new_slot("Priority")
    slot.put(dict.fromkeys(numbered(30), 2**30))

    def lose(after):
        if after is not None:
            slot.queue.cancel({0: [after[1]]})

    assert in_small_pages(slot, 7, lose) == numbered(30)[::-1]
    slot.put({b"x": 20, b"y": 20, b"z": 30})
    page, _ = slot.queue.ask(reading.page, STORE, 0, after=(20, b"a gone one"), most=9)
    assert page.contents == [b"y", b"x"]


def test_a_large_store_of_priorities_is_read_to_its_end(new_slot):
    """Seen: with the order reversed in Redis alone, only the first page of a slot was read."""
    slot = new_slot("Priority")
    slot.queue.send(numbered(2500), priority=20)
    assert contents(slot, STORE) == numbered(2500)


def test_where_the_last_entry_has_left_its_equals_are_neither_missed_nor_repeated(slot):
    slot.put(dict.fromkeys(numbered(30), 1000))

    def lose(after):
        if after is not None:
            slot.queue.cancel({0: [after[1]]})

    assert in_small_pages(slot, 7, lose) == numbered(30)


def test_where_the_last_entry_has_moved_on_the_rest_is_not_missed(slot):
    slot.put_due(numbered(20))

    def move(after):
        if after is not None and after[0] < 5000:
            slot.redis.zadd(slot.keys.store(0), {after[1]: 9000})

    shown = in_small_pages(slot, 5, move)
    assert set(shown) == set(numbered(20))
    assert shown[:20] == numbered(20)


def test_all_that_was_there_may_go_while_it_is_looked_at(slot):
    slot.put(dict.fromkeys(numbered(30), 1000))

    def lose_all(after):
        if after is not None:
            slot.queue.cancel({0: numbered(30)})

    assert in_small_pages(slot, 7, lose_all) == numbered(7)


def test_an_empty_queue_has_no_page(slot):
    assert [list(slot.queue.pages(kind, 0)) for kind in QueueKind] == [[], [], [], []]


def test_an_empty_content_is_a_content(slot):
    slot.put(dict.fromkeys([b"", *numbered(4)], 1000))
    page, _ = slot.queue.ask(reading.page, STORE, 0, after=(1000, b""), most=2)
    assert page.contents == numbered(2)


def test_sizes_add_up_queues_by_slot(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    queue.send(numbered(100), fixed_time=FAR_MS)
    sizes = queue.ask(reading.sizes, [STORE, DEAD], range(4))
    assert sum(sizes) == 100
    assert sizes == [len(next(queue.pages(STORE, s)).contents) for s in range(4)]


def test_claims_of_long_leases_are_told_by_group(new_slot, broker):
    slot = new_slot(groups=("", "audit"))
    slot.queue.send([b"m"], fixed_time=1)
    audit = broker.queue("T0", group="audit")
    assert len(first_entries(audit.pages(STORE, 0), 5)) == 1
    slot.claim(lease_ms=LONG_MS)
    assert contents(slot, STORE) == []
    assert len(first_entries(audit.pages(STORE, 0), 5)) == 1


def test_queues_are_named_by_text():
    assert QUEUE.parse("dead, Store") == (STORE, DEAD)
    assert QUEUE.parse("all") == tuple(QueueKind)


def test_large_contents_behind_small_ones_are_not_read_all_at_once(slot):
    slot.put_due(numbered(255))
    slot.put({name + bytes(100_000): 5_000 for name in numbered(64, "x")})
    page, more = slot.queue.ask(reading.page, STORE, 0)
    assert (len(page.contents), more) == (255 + 18, True)


def test_sizes_count_what_claims_hold(slot):
    slot.put_due(numbered(10))
    slot.claim("a", limit=4)
    slot.claim("b", limit=3)
    slot.rollback(numbered(1))
    assert slot.queue.ask(reading.sizes, [PREPARE], [0]) == [6]
    assert slot.queue.ask(reading.sizes, [STORE, PREPARE], [0]) == [10]


def test_no_claim_is_of_the_future(slot):
    for seq in range(1, 6):
        slot.put_due([b"m%d" % seq])
        slot.claim(seq=seq)
    found = entries(slot, PREPARE)
    now_ms = slot.queue.now_ms()
    assert all(entry.prepared_at_ms <= now_ms for entry in found)
