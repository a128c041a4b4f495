"""A claim that its holder has lost: its messages come again with ever fewer others."""

import pytest

from rmq_spark.protocol import claiming, returning

from ..seeding import LONG_MS, numbered, suspect


def lose(slot, limit=8192, alone=False):
    """A consumer claims and is gone. Returns what it had."""
    consumer = f"c{len(slot.redis.hkeys(slot.keys.consumers(0)))}"
    contents = slot.claimed(consumer, limit=limit, alone=alone, lease_ms=0)
    slot.give_back_expired("a")
    return list(contents)


def levels(slot):
    """The level of each message in the store."""
    return {content: int(max(0, -score // 32)) for content, score in slot.store.items()}


@pytest.mark.parametrize(
    ("messages", "level"), [(1, 3), (2, 3), (16, 3), (17, 2), (256, 2), (257, 1), (3072, 1)]
)
def test_the_more_messages_a_lost_claim_had_the_more_come_together_again(slot, messages, level):
    slot.put_due(numbered(messages))
    assert len(lose(slot)) == messages
    assert set(levels(slot).values()) == {level}
    most = {1: 256, 2: 16, 3: 1}[level]
    assert len(slot.claimed()) == min(most, messages)
    slot.check_conservation()


@pytest.mark.parametrize("topic_type", ["FixedTime", "RangeMerge", "Priority"])
@pytest.mark.parametrize("max_retries", [0, 3, 16])
def test_one_that_ends_each_holder_dies_after_so_many_and_no_other_is_charged(
    new_slot, topic_type, max_retries
):
    """The bound: four lost claims until it is alone, and one for each delivery that it has."""
    slot = new_slot(topic_type, max_retries=max_retries)
    contents = numbered(600)
    slot.put_due(contents)
    poison, done, lost = contents[300], [], 0
    for number in range(2000):
        if not slot.queue.figures().store.count:
            break
        consumer, alone = f"c{number}", number % 2 == 1
        claim = slot.claim(consumer, limit=600, alone=alone)
        if poison in claim.contents:
            lost += 1
            assert alone or lost <= 4
            slot.release(consumer)
            slot.give_back_expired("x")
        else:
            assert set(claim.retries_left) <= {max_retries}
            done += claim.contents
            slot.commit(consumer)
    assert lost == 4 + max_retries + 1
    assert sorted(done) == sorted(set(contents) - {poison})
    assert set(slot.dead) == {poison}
    slot.check_conservation()


def test_a_claim_that_is_lost_again_always_comes_in_a_smaller_one(slot):
    slot.put(dict.fromkeys(numbered(3), suspect(1, 17)))
    lose(slot)
    assert levels(slot) == dict.fromkeys(numbered(3), 3)
    lose(slot)
    assert levels(slot) == {numbered(3)[0]: 4} | dict.fromkeys(numbered(3)[1:], 3)
    slot.put({b"few": suspect(2, 17)})
    lost = [lose(slot) for _ in range(3)]
    assert sorted(map(tuple, lost)) == [(b"few",), *((one,) for one in numbered(3)[1:])]
    assert levels(slot) == dict.fromkeys(numbered(3), 4) | {b"few": 3}


def test_suspects_of_one_level_come_alone_the_most_suspect_first(slot):
    scores = {b"one": suspect(1, 17), b"two": suspect(2, 17), b"three": suspect(3, 17)}
    slot.put(scores | {b"retry": 5, b"first": 1000})
    claims = [slot.claim(seq=seq) for seq in range(1, 5)]
    assert [c.contents for c in claims] == [[b"three"], [b"two"], [b"one"], [b"retry", b"first"]]


def test_suspects_come_first_in_a_priority_topic_too(new_slot):
    slot = new_slot("Priority")
    slot.put({b"one": suspect(1, 17), b"three": suspect(3, 17), b"retry": 5, b"urgent": 1000})
    claims = [slot.claim(seq=seq) for seq in range(1, 4)]
    assert [c.contents for c in claims] == [[b"three"], [b"one"], [b"urgent", b"retry"]]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_who_has_something_else_in_work_passes_over_what_must_be_alone(new_slot, topic_type):
    slot = new_slot(topic_type)
    scores = {b"alone": suspect(4, 17), b"later": suspect(4, 16), b"three": suspect(3, 17)}
    slot.put(scores | {b"retry": 5, b"first": 1000})
    assert slot.claimed(seq=1) == [b"three"]
    assert sorted(slot.claimed(seq=2)) == [b"first", b"retry"]
    assert slot.claimed(seq=3) == []
    assert set(slot.store) == {b"alone", b"later"}
    taken = [slot.claimed(seq=seq, alone=True) for seq in (4, 5)]
    assert sorted(map(tuple, taken)) == [(b"alone",), (b"later",)]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_the_limit_and_the_share_of_retries_hold_beside_what_must_be_alone(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put({b"alone": suspect(4, 17)})
    slot.put(dict.fromkeys(numbered(20, "retry"), 5))
    slot.put_due(numbered(20))
    claimed = set(slot.claimed(limit=8))
    retries = claimed & set(numbered(20, "retry"))
    assert len(claimed) == 8
    assert len(retries) == (1 if topic_type == "Priority" else 7)
    turns = [slot.claimed(seq=seq, limit=1)[0] in numbered(20, "retry") for seq in (2, 3)]
    assert sorted(turns) == [False, True]


def test_the_limit_holds_for_suspects(slot):
    slot.put(dict.fromkeys(numbered(9), suspect(2, 17)))
    assert [len(slot.claimed(seq=seq, limit=5)) for seq in (1, 2)] == [5, 4]


def test_who_is_alone_takes_what_is_due_if_there_is_no_suspect(slot):
    slot.put_due(numbered(3))
    assert slot.claimed(alone=True) == numbered(3)


def test_what_another_claim_holds_is_passed_over(slot):
    slot.put({b"m": suspect(4, 17)})
    slot.claim("b", alone=True)
    slot.put({b"m": suspect(4, 17), b"n": suspect(3, 17), b"o": 1000})
    assert slot.claimed(seq=1, alone=True) == [b"n"]
    assert slot.claimed(seq=2, alone=True) == [b"o"]


def test_one_that_was_alone_and_is_lost_is_charged_and_stays_so(slot):
    slot.put({b"m": suspect(4, 2), b"other": suspect(4, 1)})
    assert [lose(slot, alone=True) for _ in range(3)] == [[b"m"], [b"m"], [b"other"]]
    assert slot.store == {}
    assert set(slot.dead) == {b"m", b"other"}
    slot.check_conservation()


def test_what_was_charged_waits_for_the_backoff_and_stays_suspect(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put({b"m": suspect(4, 17)})
    lose(slot, alone=True)
    assert slot.waiting == {b"m": -suspect(4, 16)}
    slot.redis.zadd(slot.keys.retry(0), {b"m": 5_000 - suspect(4, 16)})
    assert slot.claimed("b") == []
    assert slot.store == {b"m": suspect(4, 16)}
    assert slot.claim("b", seq=2, alone=True).retries_left == [15]


def test_uncharged_messages_do_not_wait(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put_due(numbered(3))
    lose(slot)
    assert slot.retry == {}
    assert slot.store == dict.fromkeys(numbered(3), suspect(3, 17))


def test_a_suspect_that_is_rolled_back_is_a_plain_retry(slot):
    slot.put({b"m": suspect(4, 17), b"n": suspect(4, 3)})
    for seq in (1, 2):
        contents = slot.claimed(seq=seq, alone=True)
        slot.rollback(contents, f"a:{seq}:0:1")
    assert slot.store == {b"m": 16, b"n": 2}


def test_a_suspect_that_nobody_got_is_as_before(slot):
    stored = {b"m": suspect(2, 17), b"n": suspect(2, 3)}
    slot.put(stored)
    slot.claim()
    slot.queue.ask(claiming.unread, [0], "a", 1, 1)
    slot.queue.ask(returning.give_back, [0], "a", 1)
    assert slot.store == stored


def test_a_suspect_that_a_replay_could_not_read_keeps_its_level(slot):
    slot.put({b"m": suspect(2, 17)})
    slot.claim()
    assert slot.claim(run=2).retries_left == [15]
    slot.queue.ask(claiming.unread, [0], "a", 2, 1)
    slot.queue.ask(returning.give_back, [0], "a", 2)
    assert slot.store == {b"m": suspect(2, 16)}


def test_a_suspect_that_is_sent_again_is_a_first_delivery(slot):
    slot.put({b"m": suspect(4, 1)})
    slot.queue.send([b"m"], fixed_time=1000)
    assert slot.claim().retries_left == [16]


def test_a_suspect_read_again_is_the_same(slot):
    slot.put({b"m": suspect(3, 17), b"n": suspect(3, 9)})
    first = slot.claim()
    assert slot.claim().contents == first.contents
    assert slot.claim(run=2).retries_left == [left - 1 for left in first.retries_left]


def test_claims_that_an_older_run_left_are_suspect(slot):
    slot.put_due(numbered(2))
    slot.claim(limit=1)
    slot.claim(run=2, seq=2)
    slot.queue.ask(returning.give_back, [0], "a", 2)
    assert slot.store == {numbered(2)[0]: suspect(3, 17), numbered(2)[1]: 16}


def test_a_suspect_that_was_cancelled_is_gone(slot):
    slot.put({b"m": suspect(4, 17)})
    assert slot.queue.cancel({0: [b"m"]}) == 1
    slot.check_conservation()


def test_a_claim_whose_messages_were_deleted_by_hand_is_gone(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    slot.redis.unlink(slot.keys.claim(0, "a:1:0"))
    assert slot.give_back_expired("b") == 0
    assert slot.records == {}
    slot.count("accepted", -1)


def test_figures_count_suspects_as_due(slot):
    slot.put({b"m": suspect(4, 17), b"far": slot.now_ms() + LONG_MS})
    assert slot.queue.figures().store.due == 1
