"""A new claim: what it pops, in which order, with how many retries left, and what it writes."""

import pytest

from rmq_spark.errors import ScriptFailed

from ..seeding import FAR_MS, LONG_MS, numbered


def test_messages_move_into_the_prepare_queue_in_order_of_their_due_times(slot):
    slot.put({b"third": 3000, b"first": 1000, b"second": 2000})
    claim = slot.claim()
    assert claim.contents == [b"first", b"second", b"third"]
    assert claim.scores == [1000, 2000, 3000]
    assert slot.store == {}
    assert sorted(slot.prepare, key=slot.prepare.get) == claim.contents


def test_priorities_are_delivered_from_the_highest(new_slot):
    slot = new_slot("Priority")
    slot.put({b"low": 17, b"high": 2**53, b"middle": 500})
    claim = slot.claim()
    assert claim.contents == [b"high", b"middle", b"low"]
    assert claim.scores == [9007199254740992, 500, 17]
    assert claim.retries_left == 16


def test_equal_priorities_come_in_one_order_and_in_the_same_when_read_again(new_slot):
    slot = new_slot("Priority")
    slot.put(dict.fromkeys(numbered(100), 50))
    assert slot.claimed() == numbered(100)[::-1] == slot.claimed()


def test_what_is_not_due_yet_stays(slot):
    soon = slot.now_ms() + LONG_MS
    slot.put({b"due": 1000, b"soon": soon, b"far": FAR_MS})
    assert slot.claimed() == [b"due"]
    assert slot.store == {b"soon": soon, b"far": FAR_MS}


def test_a_message_is_due_once_redis_time_reaches_its_own(slot):
    now = slot.now_ms()
    slot.put({b"now": now, b"next": now + 30})
    early = slot.claim(seq=1)
    assert early.contents[0] == b"now"
    slot.wait_past(now + 30)
    assert early.contents + slot.claimed(seq=2) == [b"now", b"next"]


def test_due_before_holds_back_what_came_due_later(slot):
    slot.put({b"early": 1499, b"edge": 1500, b"late": 1501})
    assert slot.claimed(due_before_ms=1500) == [b"early", b"edge"]
    assert slot.claimed(seq=2) == [b"late"]


def test_due_before_in_the_future_takes_nothing_early(slot):
    slot.put({b"far": FAR_MS - 1})
    assert slot.claimed(due_before_ms=FAR_MS) == []


def test_due_before_does_not_concern_priorities(new_slot):
    slot = new_slot("Priority")
    slot.put({b"m": 9000})
    assert slot.claimed(due_before_ms=17) == [b"m"]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_the_limit_is_kept_and_the_rest_stays_in_order(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put_due(numbered(10))
    taken = [slot.claimed(seq=seq, limit=4) for seq in (1, 2, 3)]
    assert [len(contents) for contents in taken] == [4, 4, 2]
    expected = numbered(10) if topic_type == "FixedTime" else numbered(10)[::-1]
    assert [content for contents in taken for content in contents] == expected


def test_a_first_delivery_has_max_retries_left_and_a_retry_one_less_than_its_score(new_slot):
    slot = new_slot(max_retries=7)
    slot.put({b"last": 1, b"once": 5, b"highest": 16, b"first": 17, b"another": 1000})
    claim = slot.claim()
    assert dict(zip(claim.contents, claim.retries_left, strict=True)) == slot.retries_left
    assert slot.retries_left == {b"last": 0, b"once": 4, b"highest": 15, b"first": 7, b"another": 7}


def test_the_prepare_score_is_stamp_retries_and_rank(slot):
    slot.put_due(numbered(2048))
    before = slot.now_ms() // 1000
    slot.claim()
    stamp = slot.records["a:1:0"].stamp
    assert before <= stamp <= slot.now_ms() // 1000
    expected = {c: stamp * 1000 + 16 + rank / 2048 for rank, c in enumerate(numbered(2048))}
    assert slot.prepare == expected


def test_the_record_tells_run_deadline_and_count(slot):
    slot.put_due(numbered(3))
    before = slot.now_ms()
    slot.claim(run=7, seq=5, ordinal=2, lease_ms=LONG_MS)
    record = slot.records["a:5:2"]
    assert (record.version, record.run, record.count, record.moved) == (2, 7, 3, 0)
    assert before + LONG_MS <= record.deadline <= slot.now_ms() + LONG_MS


def test_the_header_tells_what_was_claimed_last(slot):
    before = slot.now_ms()
    slot.claim(run=7, seq=5, ordinal=2)
    header = slot.header()
    assert (header.run, header.settled, header.last_seq, header.last_ordinal) == (7, 0, 5, 2)
    assert before <= header.seen_ms <= slot.now_ms()


def test_an_empty_claim_has_no_stamp_and_a_record(slot):
    slot.claim()
    record = slot.records["a:1:0"]
    assert (record.stamp, record.count) == (0, 0)


def test_no_two_claims_share_a_stamp(slot):
    slot.put_due(numbered(40))
    for seq in range(1, 11):
        for consumer in "abcd":
            slot.claim(consumer, seq=seq, limit=1)
    stamps = [record.stamp for record in slot.records.values()]
    assert len(set(stamps)) == 40


def test_a_stamp_that_messages_without_a_record_use_is_passed_over(slot):
    now = slot.now_ms() // 1000
    orphans = {f"orphan{ahead}": (now + ahead) * 1000 + 3 for ahead in range(60)}
    slot.redis.zadd(slot.keys.prepare(0), orphans)
    slot.count("accepted", len(orphans))
    slot.put_due([b"m"])
    slot.claim()
    assert slot.records["a:1:0"].stamp == now + 60
    slot.commit()
    assert len(slot.prepare) == 60


def test_each_claim_counts_what_it_took(slot):
    slot.put_due(numbered(5))
    slot.claim(limit=3)
    slot.claim(limit=3)
    slot.claim(ordinal=1)
    assert slot.counters["claimed"] == 5


def test_contents_of_any_bytes_come_back_as_they_were(slot):
    contents = [b"", b"\x00", bytes(range(256)), "\u00e9 \U0001f600".encode(), b"1", b"x" * 2**20]
    slot.put_due(contents)
    assert slot.claimed() == contents
    assert slot.claimed() == contents
    assert slot.commit().committed == 6


@pytest.mark.parametrize(
    ("argument", "value"),
    [("limit", 0), ("limit", 2049), ("limit", -1), ("ordinal", 16), ("ordinal", -1)],
)
def test_a_limit_or_number_out_of_bounds_is_refused_before_the_first_write(slot, argument, value):
    """Rank 2048 would read as one retry more, and the message as another's on the second read."""
    slot.put_due(numbered(3000))
    before = slot.dump()
    with pytest.raises(ScriptFailed, match="1 to 2048"):
        slot.claim(**{argument: value})
    assert slot.dump() == before


# -- due retries


def test_due_retries_are_taken_with_the_retries_they_have_left(slot):
    slot.put_waiting({b"r3": 5_003, b"r16": 6_016})
    claim = slot.claim()
    assert claim.contents == [b"r3", b"r16"]
    assert claim.retries_left == [2, 15]
    assert claim.moved == 2
    assert slot.retry == {}


def test_a_retry_whose_wait_is_not_over_stays(slot):
    later = (slot.now_ms() // 1000 + 100) * 1000 + 4
    slot.put_waiting({b"later": later})
    assert slot.claimed() == []
    assert slot.retry == {b"later": later}


def test_a_retry_is_due_in_the_second_it_names_and_not_before(slot):
    slot.put_waiting({b"r": 5_016})
    assert slot.claimed(due_before_ms=4_999) == []
    assert slot.claimed(seq=2, due_before_ms=5_000) == [b"r"]


def test_due_before_holds_back_retries_of_priorities(new_slot):
    slot = new_slot("Priority")
    slot.put_waiting({b"r": 5_016})
    assert slot.claimed(due_before_ms=4_000) == []
    assert slot.claimed(seq=2) == [b"r"]


def test_at_most_1000_retries_are_moved_a_claim(slot):
    slot.put_waiting(dict.fromkeys(numbered(1005), 5008))
    assert slot.claim().moved == 1000
    assert len(slot.retry) == 5
    assert slot.claim(seq=2).moved == 5


# -- expired claims


def test_the_messages_of_an_expired_claim_are_given_back_and_taken(slot):
    slot.put({b"first": 1000, b"retried": 9})
    slot.claim("a", lease_ms=0)
    claim = slot.claim("b")
    assert claim.contents == [b"retried", b"first"]
    assert claim.retries_left == [7, 15]
    assert claim.moved == 2
    assert list(slot.records) == ["b:1:0"]
    assert not slot.redis.hexists(slot.keys.first(0), "a:1:0")
    assert slot.counters["rolledBack"] == 2


def test_a_claim_whose_lease_runs_is_left_alone(slot):
    slot.put_due([b"m"])
    slot.claim("a")
    assert slot.claimed("b") == []
    assert slot.claimed("a") == [b"m"]


def test_an_expired_claim_of_the_same_consumers_earlier_batch_is_given_back(slot):
    slot.put_due([b"m"])
    slot.claim(seq=1, lease_ms=0)
    assert slot.claim(seq=2).retries_left == [15]


def test_expired_claims_of_the_same_batch_are_spared(slot):
    slot.put_due(numbered(4))
    slot.claim(ordinal=0, limit=2, lease_ms=0)
    assert slot.claimed(ordinal=1) == numbered(4)[2:]
    assert slot.claimed(ordinal=0) == numbered(2)


def test_the_same_batch_number_of_another_consumer_is_not_spared(slot):
    slot.put_due([b"m"])
    slot.claim("a", seq=3, lease_ms=0)
    assert slot.claimed("b", seq=3) == [b"m"]


def test_an_expired_message_without_retries_left_is_buried(new_slot):
    slot = new_slot(max_retries=0)
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    before = slot.now_ms()
    claim = slot.claim("b")
    assert (claim.contents, claim.moved) == ([], 1)
    assert before <= slot.dead[b"m"] <= slot.now_ms()
    assert slot.counters["dead"] == 1


def test_expired_messages_wait_for_the_topics_backoff(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    assert slot.claimed("b") == []
    assert slot.waiting == {b"m": 16}


def test_an_expired_copy_gives_way_to_one_sent_again(slot):
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    slot.queue.send([b"m"], fixed_time=5000)
    claim = slot.claim("b")
    assert (claim.contents, claim.scores, claim.retries_left) == ([b"m"], [5000], 16)
    assert slot.counters["merged"] == 1


def test_empty_records_are_not_reaped_and_hold_nothing_back(slot):
    slot.claim("a", lease_ms=0)
    slot.put_due([b"m"])
    assert slot.claimed("b") == [b"m"]
    assert slot.claimed("a", lease_ms=0) == []


def test_at_most_4096_messages_are_given_back_a_claim(slot):
    slot.put_due(numbered(3 * 2048))
    for ordinal in range(3):
        slot.claim("a", ordinal=ordinal, lease_ms=0)
    claim = slot.claim("b", limit=1)
    assert claim.moved == 4096
    assert len(slot.records) == 2
    assert slot.claim("b", seq=2, limit=1).moved == 2048


# -- contents that another claim still holds


def test_a_content_in_flight_is_passed_over_and_keeps_its_score(slot):
    slot.put_due([b"held"])
    slot.claim("a")
    slot.queue.send([b"held"], fixed_time=500)
    slot.put_due([b"behind"])
    assert slot.claimed("b") == [b"behind"]
    assert slot.store == {b"held": 500}
    assert slot.claimed("a") == [b"held"]
    slot.commit("a")
    assert slot.claimed("b", seq=2) == [b"held"]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_the_scan_goes_on_past_contents_in_flight(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put_due(numbered(10))
    slot.claim("a")
    again = dict.fromkeys(numbered(10), 900 if topic_type == "FixedTime" else 9000)
    slot.put(again)
    slot.put_due([b"behind"])
    assert slot.claimed("b", limit=1) == [b"behind"]
    assert slot.store == again


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_ranks_have_no_gap_where_contents_in_flight_were_passed_over(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put_due(numbered(9)[::2])
    slot.claim("a")
    slot.put_due(numbered(9))
    slot.put({b"retry-b": 2, b"retry-a": 2})
    claim = slot.claim("b", limit=6)
    free = [b"retry-a", b"retry-b", *numbered(9)[1::2]]
    assert claim.contents == (free if topic_type == "FixedTime" else free[::-1])
    ranks = [score % 1 * 2048 for score in sorted(slot.prepare.values())[5:]]
    assert sorted(ranks) == list(range(6))
    assert slot.claim("b").contents == claim.contents
    assert slot.claim("b").scores == claim.scores
    assert len(slot.store) == 5


def test_an_expired_twin_in_the_same_batch_is_not_moved_out_of_its_claim(slot):
    slot.put_due([b"m"])
    slot.claim(ordinal=0, lease_ms=0)
    slot.queue.send([b"m"], fixed_time=500)
    assert slot.claimed(ordinal=1) == []
    assert slot.claimed(ordinal=0) == [b"m"]


def test_at_most_4096_entries_are_looked_at(slot):
    held = numbered(4096)
    slot.put_due(held)
    slot.claim("a", ordinal=0)
    slot.claim("a", ordinal=1)
    slot.put_due(held)
    slot.put({b"behind": 900_000})
    assert slot.claimed("b", seq=1) == []
    slot.redis.zrem(slot.keys.store(0), held[0])
    slot.count("accepted", -1)
    assert slot.claimed("b", seq=2) == [b"behind"]
    assert len(slot.store) == 4095


# -- retries and first deliveries share a claim


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize(
    ("limit", "lead", "last"), [(2, 1, 1), (7, 6, 1), (8, 7, 1), (16, 14, 2), (64, 56, 8)]
)
def test_an_eighth_is_kept_for_the_kind_that_comes_last(new_slot, topic_type, limit, lead, last):
    slot = new_slot(topic_type)
    slot.put({content: 1 + rank % 16 for rank, content in enumerate(numbered(100, "retry"))})
    slot.put_due(numbered(100, "first"))
    scores = slot.claim(limit=limit).scores
    retries = [score for score in scores if score <= 16]
    firsts = [score for score in scores if score > 16]
    if topic_type == "FixedTime":
        assert (len(retries), len(firsts)) == (lead, last)
        assert scores == sorted(scores)
    else:
        assert (len(firsts), len(retries)) == (lead, last)
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize(("retries", "firsts"), [(0, 20), (20, 0), (2, 20), (20, 1), (1, 1)])
def test_what_one_kind_does_not_use_the_other_gets(new_slot, topic_type, retries, firsts):
    slot = new_slot(topic_type)
    slot.put(dict.fromkeys(numbered(retries, "retry"), 4)) if retries else None
    slot.put_due(numbered(firsts, "first")) if firsts else None
    assert len(slot.claimed(limit=16)) == min(16, retries + firsts)


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_single_messages_take_turns_between_retries_and_first_deliveries(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put(dict.fromkeys(numbered(10, "retry"), 4))
    slot.put_due(numbered(10, "first"))
    kinds = [slot.claimed(seq=seq, limit=1)[0][:5] for seq in range(1, 7)]
    assert sorted(kinds[:2]) == [b"first", b"retry"]
    assert kinds == kinds[:2] * 3


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_single_messages_take_turns_also_where_only_every_second_batch_comes(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put(dict.fromkeys(numbered(10, "retry"), 4))
    slot.put_due(numbered(10, "first"))
    kinds = [slot.claimed(seq=seq, limit=1)[0][:5] for seq in range(2, 14, 2)]
    assert sorted(kinds[:2]) == [b"first", b"retry"]
    assert kinds == kinds[:2] * 3


def test_what_is_not_due_does_not_keep_a_place(slot):
    slot.put(dict.fromkeys(numbered(10, "retry"), 4))
    slot.put(dict.fromkeys(numbered(10, "far"), FAR_MS))
    assert len(slot.claimed(limit=8)) == 8


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("held", [b"first", b"retry"])
def test_a_single_message_is_found_though_those_whose_turn_it_is_are_in_flight(
    new_slot, topic_type, before, held
):
    """The turn passes only with a message taken, so nothing would come until they are settled."""
    slot = new_slot(topic_type)
    slot.put_due([held, *numbered(before)])
    slot.claim("a", limit=1 + before)
    kept = {b"first": 1500, b"retry": 4}
    slot.put(kept)
    assert slot.claimed("b", limit=1) == [next(iter(kept.keys() - {held}))]
    assert slot.store == {held: kept[held]}
