"""A new claim: what it takes, in which order, with how many retries left, and what it writes."""

import pytest

from rmq_spark.errors import LeaseLost, ScriptFailed
from rmq_spark.protocol import claiming, returning
from rmq_spark.protocol.claims import ClaimRequest

from ..seeding import FAR_MS, LONG_MS, numbered, requeue
from .staged import NAME, Stages


def test_messages_move_into_the_claim_in_order_of_their_due_times(slot):
    slot.put({b"third": 3000, b"first": 1000, b"second": 2000})
    claim = slot.claim()
    assert claim.contents == [b"first", b"second", b"third"]
    assert claim.scores == [1000, 2000, 3000]
    assert slot.store == {}
    assert sorted(slot.held("a:1:0"), key=slot.prepare.get) == claim.contents


def test_priorities_are_delivered_from_the_highest(new_slot):
    slot = new_slot("Priority")
    slot.put({b"low": 17, b"high": 2**53, b"middle": 500})
    claim = slot.claim()
    assert claim.contents == [b"high", b"middle", b"low"]
    assert claim.scores == [9007199254740992, 500, 17]
    assert claim.retries_left == [16, 16, 16]


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


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_the_claim_keeps_the_scores_that_the_store_had(new_slot, topic_type):
    slot = new_slot(topic_type)
    scores = {content: 10**12 + rank for rank, content in enumerate(numbered(100))}
    scores |= {b"retried": 4, b"last": 1, b"highest": 2**53 if topic_type == "Priority" else 2000}
    slot.put(scores)
    claim = slot.claim()
    assert slot.held("a:1:0") == dict(zip(claim.contents, claim.scores, strict=True)) == scores


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_a_claim_takes_as_many_as_8192(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put_due(numbered(8200))
    in_order = numbered(8200)
    in_order = in_order if topic_type == "FixedTime" else in_order[::-1]
    assert slot.claimed(limit=8192) == in_order[:8192]
    assert slot.claimed(limit=8192) == in_order[:8192]
    assert slot.claimed(ordinal=1) == in_order[8192:]
    result = slot.commit()
    assert (result.claimed, result.committed) == (8200, 8200)


def test_the_record_tells_run_deadline_and_counts(new_slot):
    slot = new_slot(max_retries=5)
    slot.put_due(numbered(3))
    slot.put_waiting({b"r": 5_003})
    before = slot.now_ms()
    slot.claim(run=7, seq=5, ordinal=2, lease_ms=LONG_MS)
    record = slot.records["a:5:2"]
    assert (record.version, record.run, record.sealed, record.held) == (1, 7, 4, 4)
    assert (record.moved, record.max_retries, record.charged, record.replayed) == (1, 5, 0, 0)
    assert before <= record.made <= slot.now_ms()
    assert record.deadline == record.made + LONG_MS


def test_the_header_tells_what_was_claimed_last(slot):
    before = slot.now_ms()
    slot.claim(run=7, seq=5, ordinal=2)
    header = slot.header()
    assert (header.run, header.settled, header.last_seq, header.last_ordinal) == (7, 0, 5, 2)
    assert before <= header.seen_ms <= slot.now_ms()


def test_an_empty_claim_has_a_record_and_no_key(slot):
    slot.claim()
    record = slot.records["a:1:0"]
    assert (record.sealed, record.held) == (0, 0)
    assert not slot.redis.exists(slot.keys.claim(0, "a:1:0"))


@pytest.mark.parametrize("key", ["claim", "part"])
def test_messages_of_a_claim_whose_record_is_gone_are_never_overwritten(slot, key):
    slot.put_due([b"m"])
    stray = slot.keys.claim(0, "a:1:0") if key == "claim" else slot.keys.part(0)
    slot.redis.zadd(stray, {b"stray": 1000})
    before = slot.dump()
    with pytest.raises(ScriptFailed, match=r"RMQ_STRAYCLAIM .* record is gone") as raised:
        slot.claim()
    assert stray in str(raised.value)
    assert slot.dump() == before
    slot.redis.delete(stray)
    assert slot.claimed() == [b"m"]


def test_a_claim_that_exists_is_read_whatever_lies_at_the_key_of_parts(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.redis.zadd(slot.keys.part(0), {b"stray": 1000})
    assert slot.claimed() == [b"m"]
    slot.redis.delete(slot.keys.part(0))


def test_a_claim_whose_key_was_deleted_is_lost_not_smaller(slot):
    slot.put_due(numbered(3))
    slot.claim()
    slot.redis.delete(slot.keys.claim(0, "a:1:0"))
    with pytest.raises(
        LeaseLost, match=r"a:1:0 of topic T0, slot 0, should hold 3 .* has 0 of them"
    ):
        slot.claim()
    assert slot.records["a:1:0"].held == 3
    assert slot.commit().committed == 3


def test_a_claim_that_lacks_a_message_is_lost_not_smaller(slot):
    slot.put_due(numbered(3))
    slot.claim()
    slot.redis.zrem(slot.keys.claim(0, "a:1:0"), numbered(3)[1])
    for run in (1, 2):
        with pytest.raises(LeaseLost, match="should hold 3 messages, but Redis has 2 of them"):
            slot.claim(run=run)
    slot.redis.zadd(slot.keys.claim(0, "a:1:0"), {numbered(3)[1]: 1001})


def test_a_reader_goes_on_without_what_was_deleted_as_the_error_says(slot):
    slot.put_due(numbered(3))
    slot.claim(lease_ms=1)
    slot.redis.zrem(slot.keys.claim(0, "a:1:0"), numbered(3)[1])
    with pytest.raises(
        LeaseLost, match="wait until the lease ends, run rmq expire TOPIC, and start"
    ):
        slot.claim(lease_ms=1)
    slot.wait_past(slot.records["a:1:0"].deadline)
    assert slot.queue.expire() == 2
    assert slot.claimed(run=2, seq=2) == [numbered(3)[0]]
    assert slot.claimed(run=2, seq=3) == [numbered(3)[2]]
    slot.redis.zadd(slot.keys.store(0), {numbered(3)[1]: 1001})


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
    [("limit", 0), ("limit", 8193), ("limit", -1), ("ordinal", 16), ("ordinal", -1)],
)
def test_a_limit_or_number_out_of_bounds_is_refused_before_the_first_write(slot, argument, value):
    slot.put_due(numbered(9000))
    before = slot.dump()
    with pytest.raises(ScriptFailed, match="1 to 8192"):
        slot.claim(**{argument: value})
    assert slot.dump() == before


# -- due retries


def test_due_retries_are_taken_with_the_retries_they_have_left(slot):
    slot.put_waiting({b"r3": 5_003, b"r16": 6_016})
    claim = slot.claim()
    assert claim.contents == [b"r3", b"r16"]
    assert claim.retries_left == [2, 15]
    assert slot.records["a:1:0"].moved == 2
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
    slot.claim()
    assert len(slot.retry) == 5
    slot.claim(seq=2)
    assert [slot.records[name].moved for name in ("a:1:0", "a:2:0")] == [1000, 5]
    assert slot.retry == {}


def test_a_due_retry_gives_way_to_a_copy_that_was_sent_again(slot):
    slot.put_waiting({b"m": 5_003})
    slot.put({b"m": 7000})
    claim = slot.claim()
    assert (claim.contents, claim.scores, claim.retries_left) == ([b"m"], [7000], [16])
    assert slot.counters["merged"] == 1


# -- expired claims, which are given back before


def test_the_messages_of_an_expired_claim_are_given_back_and_taken(slot):
    slot.put({b"first": 1000, b"retried": 9})
    slot.claim("a", lease_ms=0)
    assert slot.give_back_expired("b") == 2
    claims = [slot.claim("b", seq=seq) for seq in (1, 2)]
    assert [claim.contents for claim in claims] == [[b"first"], [b"retried"]]
    assert [claim.retries_left for claim in claims] == [[16], [8]]
    assert list(slot.records) == ["b:1:0", "b:2:0"]
    assert not slot.redis.exists(slot.keys.claim(0, "a:1:0"))
    assert slot.counters["rolledBack"] == 2


def test_a_claim_alone_gives_nothing_back(slot):
    slot.put_due([b"held", b"behind"])
    slot.claim("a", limit=1, lease_ms=0)
    assert slot.claimed("b") == [b"behind"]
    assert slot.claimed("a") == [b"held"]


def test_a_claim_whose_lease_runs_is_left_alone(slot):
    slot.put_due([b"m"])
    slot.claim("a")
    assert slot.give_back_expired("b") == 0
    assert slot.claimed("b") == []
    assert slot.claimed("a") == [b"m"]


def test_an_expired_claim_of_the_same_consumers_earlier_batch_is_given_back(slot):
    slot.put_due([b"m"])
    slot.claim(seq=1, lease_ms=0)
    assert slot.give_back_expired() == 1
    assert slot.claim(seq=2).retries_left == [16]


def test_expired_claims_of_the_same_batch_are_spared(slot):
    slot.put_due(numbered(4))
    slot.claim(ordinal=0, limit=2, lease_ms=0)
    assert slot.claimed(ordinal=1) == numbered(4)[2:]
    assert slot.claimed(ordinal=0) == numbered(2)


def test_the_same_batch_number_of_another_consumer_is_not_spared(slot):
    slot.put_due([b"m"])
    slot.claim("a", seq=3, lease_ms=0)
    slot.give_back_expired("b")
    assert slot.claimed("b", seq=3) == [b"m"]


def test_empty_records_are_not_given_back_and_hold_nothing_back(slot):
    slot.claim("a", lease_ms=0)
    slot.put_due([b"m"])
    assert slot.give_back_expired("b") == 0
    assert slot.claimed("b") == [b"m"]
    assert slot.claimed("a", lease_ms=0) == []


# -- the other claims of the slot, which the caller names


def test_a_claim_that_is_not_told_of_another_names_it_and_changes_nothing(slot):
    slot.put_due(numbered(4))
    slot.claim("a", limit=1)
    slot.claim("b", limit=1)
    slot.claim("empty", limit=1, due_before_ms=17)
    slot.put_waiting({b"r": 5_003})
    before = slot.dump()
    for told in ((), ["a:1:0"], ["b:1:0"], ["a:1:0", "empty:1:0"], ["a:9:0", "x:1:0"]):
        reply = slot.claim_reply("c", others=told)
        assert reply[0] == -1
        assert sorted(reply[1:]) == [b"a:1:0", b"b:1:0"]
        assert slot.dump() == before
    assert slot.claim_reply("c", others=["b:1:0", "gone:3:0", "a:1:0"])[0] == 3


def test_a_distant_consumer_gets_its_turn_among_others_that_claim_again_and_again(slot):
    """The others commit and make their next claims while each answer is on its way to it."""
    slot.put_due(numbered(500))
    near, calls = ["b", "c", "d"], 0
    for consumer in near:
        slot.claim(consumer, limit=1)
    terms = claiming.Claiming("far", 1, 1, LONG_MS)
    claiming_far = claiming.claim(slot.queue.queues, [ClaimRequest(0, 0, 5)], terms)
    request, claims = next(claiming_far), None
    while claims is None:
        calls += 1
        assert calls < 10
        replies = slot.queue.server.ask(request)
        for consumer in near[calls % 2 :]:
            slot.commit(consumer, seq=2 * calls)
            slot.claim(consumer, seq=2 * calls + 1, limit=1)
        try:
            request = claiming_far.send(replies)
        except StopIteration as end:
            claims = end.value
    assert [len(claim.contents) for claim in claims] == [5]


def test_claims_that_hold_nothing_need_not_be_named(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1)
    slot.rollback(numbered(1), delay_ms=LONG_MS)
    slot.claim("b", due_before_ms=17)
    assert slot.claim_reply("c")[0] == 1


def test_claims_since_whose_making_nothing_has_arrived_need_not_be_named(slot):
    slot.put_due(numbered(3))
    for consumer in "ab":
        slot.claim(consumer, limit=1)
    assert slot.claim_reply("c", limit=1)[0] == 1
    slot.put_due([b"new"])
    slot.claim("d", limit=1)
    assert sorted(slot.claim_reply("e")[1:]) == [b"a:1:0", b"b:1:0", b"c:1:0"]


def send(slot):
    slot.queue.send([b"held"], fixed_time=500)


def send_what_is_there(slot):
    slot.queue.send([b"stored"], fixed_time=500)


def publish(slot):
    stages = Stages(slot)
    stages.put([b"held"])
    stages.publish({NAME: 1})


def requeue_dead(slot):
    assert requeue(slot.queue, 0, [b"held"], 500) == 1


def roll_back(slot):
    assert slot.rollback([b"other"], "other:1:0:1").rolled_back == 1


def give_back(slot):
    slot.release("other")
    assert slot.give_back_expired() == 1


def give_back_a_stray(slot):
    slot.redis.hdel(slot.keys.claims(0), "other:1:0")
    call = returning.give_back_call(slot.queue.queues, 0, "other:1:0")
    assert slot.queue.server.pipeline([call]) == [[1, b""]]


@pytest.mark.parametrize(
    "arrive",
    [
        *(send, send_what_is_there, publish, requeue_dead),
        *(roll_back, give_back, give_back_a_stray),
    ],
)
def test_whatever_brings_a_message_into_the_store_makes_claims_look_into_the_others(slot, arrive):
    slot.put_due([b"held", b"other", b"stored"])
    slot.bury(b"held")
    slot.claim("a", limit=1)
    slot.claim("other", limit=1)
    assert slot.held("a:1:0") == {b"held": 1000}
    arrive(slot)
    reply = slot.claim_reply("c")
    assert reply[0] == -1
    assert b"a:1:0" in reply
    assert b"held" not in slot.claimed("c")


@pytest.mark.parametrize(
    ("others", "taken"), [(1, 8192), (2, 8192), (4, 4096), (15, 1092), (256, 64), (300, 64)]
)
def test_the_more_claims_it_looks_into_the_fewer_messages_a_claim_takes(slot, others, taken):
    slot.put_due(numbered(9000))
    slot.put_claims(others, FAR_MS)
    assert len(slot.claim("a").contents) == taken


@pytest.mark.parametrize(("in_flight", "taken"), [(4000, 10), (4368, 1), (4369, 0), (5000, 0)])
def test_it_passes_over_a_bounded_number_of_messages(slot, in_flight, taken):
    slot.put_due(numbered(in_flight))
    slot.claim("first")
    slot.put_claims(14, FAR_MS)
    slot.put_due(numbered(in_flight + 10))
    assert len(slot.claim("a", limit=min(10, 4369 - in_flight) if taken else 10).contents) == taken


def test_a_claim_that_exists_is_read_without_naming_others(slot):
    slot.put_due(numbered(2))
    for consumer in "ab":
        slot.claim(consumer, limit=1)
    slot.put_due([b"new"])
    assert slot.claim_reply("a")[0] == 1
    assert slot.claim_reply("a", run=2)[0] == 1


def test_a_lost_plan_or_a_name_of_the_past_is_told_before_the_others_are_asked_for(slot):
    slot.put_due(numbered(2))
    slot.claim("b", limit=1)
    slot.claim("a", seq=3)
    slot.put_due([b"new"])
    assert slot.claim_reply("a", seq=4, mark="m")[:2] == [0, 2]
    with pytest.raises(LeaseLost):
        slot.claim_reply("a", seq=2)


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
def test_a_claim_has_no_gap_where_contents_in_flight_were_passed_over(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put_due(numbered(9)[::2])
    slot.claim("a")
    slot.put_due(numbered(9))
    slot.put({b"retry-b": 2, b"retry-a": 2})
    claim = slot.claim("b", limit=6)
    free = [b"retry-a", b"retry-b", *numbered(9)[1::2]]
    assert claim.contents == (free if topic_type == "FixedTime" else free[::-1])
    assert slot.claim("b").contents == claim.contents
    assert slot.claim("b").scores == claim.scores
    assert slot.store == {
        content: 1000 + rank for rank, content in enumerate(numbered(9)) if rank % 2 == 0
    }


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_conflicts_with_several_claims_keep_the_scores_of_their_newer_copies(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put_due(numbered(40))
    for consumer in "abcd":
        for ordinal in (0, 1):
            slot.claim(consumer, ordinal=ordinal, limit=5)
    again = {content: 5000 + 7 * rank for rank, content in enumerate(numbered(40))}
    free = {content: 5003 + 7 * rank for rank, content in enumerate(numbered(40, "free"))}
    slot.put(again | free)
    claim = slot.claim("z")
    assert dict(zip(claim.contents, claim.scores, strict=True)) == free
    assert sorted(claim.scores, reverse=topic_type == "Priority") == claim.scores
    assert slot.store == again


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize("held", [2048, 2049, 8192, 9000])
def test_more_conflicts_than_a_claim_takes_may_come_first(new_slot, topic_type, held):
    slot = new_slot(topic_type)
    slot.put_due(numbered(held))
    slot.claim("a", ordinal=0)
    slot.claim("a", ordinal=1)
    base = 1000 if topic_type == "FixedTime" else 10**9
    again = {content: base + rank for rank, content in enumerate(numbered(held))}
    slot.put(again)
    slot.put(dict.fromkeys(numbered(5, "behind"), 10**6))
    assert sorted(slot.claimed("b", limit=3)) == (
        numbered(3, "behind") if topic_type == "FixedTime" else numbered(3, "behind", 2)
    )
    assert len(slot.claimed("c")) == 2
    assert slot.store == again
    assert slot.commit("a").committed == held
    assert slot.counters.get("merged") is None


def test_an_expired_twin_in_the_same_batch_is_not_moved_out_of_its_claim(slot):
    slot.put_due([b"m"])
    slot.claim(ordinal=0, lease_ms=0)
    slot.queue.send([b"m"], fixed_time=500)
    assert slot.claimed(ordinal=1) == []
    assert slot.claimed(ordinal=0) == [b"m"]


def test_at_most_16384_entries_are_looked_at(slot):
    held = numbered(16384)
    slot.put_due(held)
    slot.claim("a", ordinal=0)
    slot.claim("a", ordinal=1)
    slot.put_due(held)
    slot.put({b"behind": 900_000})
    assert slot.claimed("b", seq=1) == []
    slot.redis.zrem(slot.keys.store(0), held[0])
    slot.count("accepted", -1)
    assert slot.claimed("b", seq=2) == [b"behind"]
    assert len(slot.store) == 16383


# -- retries and first deliveries share a claim


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
@pytest.mark.parametrize(
    ("limit", "lead", "last"), [(2, 1, 1), (7, 6, 1), (8, 7, 1), (16, 14, 2), (64, 56, 8)]
)
def test_an_eighth_is_kept_for_the_kind_that_comes_last(new_slot, topic_type, limit, lead, last):
    slot = new_slot(topic_type)
    slot.put({content: 1 + rank % 16 for rank, content in enumerate(numbered(60, "retry"))})
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


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_both_kinds_are_one_claim_in_one_order_with_the_scores_they_had(new_slot, topic_type):
    """They are moved by two commands, of which the second goes through another key."""
    slot = new_slot(topic_type)
    retries = {content: 1 + rank % 16 for rank, content in enumerate(numbered(60, "retry"))}
    firsts = {content: 10**12 + rank for rank, content in enumerate(numbered(60, "first"))}
    slot.put(retries | firsts)
    claim = slot.claim(limit=40)
    by_score = sorted((score, content) for content, score in (retries | firsts).items())
    if topic_type == "FixedTime":
        expected = by_score[:35] + by_score[60:65]
    else:
        expected = by_score[:84:-1] + by_score[59:54:-1]
    assert list(zip(claim.scores, claim.contents, strict=True)) == expected
    assert slot.claim().contents == claim.contents
    assert slot.held("a:1:0") == {content: score for score, content in expected}
    assert slot.store == {
        content: score for score, content in by_score if (score, content) not in expected
    }
    assert not slot.redis.exists(slot.keys.part(0))
    assert slot.records["a:1:0"].held == 40


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_both_kinds_are_taken_where_others_hold_some_of_each(new_slot, topic_type):
    slot = new_slot(topic_type)
    held = [*numbered(6, "retry"), *numbered(6, "first")]
    slot.put_due(held)
    slot.claim("b")
    retries = dict.fromkeys(numbered(30, "retry"), 4)
    firsts = {content: 2000 + rank for rank, content in enumerate(numbered(30, "first"))}
    slot.put(retries | firsts)
    claim = slot.claim(limit=16)
    assert len(claim.contents) == 16
    assert not set(claim.contents) & set(held)
    kinds = sorted(content[:5] for content in claim.contents)
    last = 14 if topic_type == "Priority" else 2
    assert kinds.count(b"first") == last
    assert slot.store.keys() == (retries | firsts).keys() - set(claim.contents)
    assert set(held) < set(slot.store)
    assert not slot.redis.exists(slot.keys.part(0))


def test_a_slot_with_very_many_claims_makes_another(slot):
    names = slot.put_claims(9000, deadline=FAR_MS)
    slot.put({b"held8999": 1000, b"free": 2000})
    assert {name.decode() for name in slot.claim_reply()[1:]} == set(names)
    assert slot.claimed() == [b"free"]
    assert slot.store == {b"held8999": 1000}
