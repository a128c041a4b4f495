"""Bodies: payloads, headers and expiry go with their message through every queue."""

import pytest

from rmq_spark.protocol import claiming, sending, staging
from rmq_spark.protocol.bodies import NO_BODIES, Body
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.verdicts import Ending

from ..seeding import LONG_MS, numbered
from .staged import NAME, Stages

BODIES_A_PART, BYTES_A_PART = 1024, 64 * 1024  # lua/include/claim_bodies.lua
LAST = Body(payload=b"last")
FIRST = Body(payload=b"first")
TERMS = claiming.Claiming("a", 1, 1, LONG_MS)


@pytest.fixture(params=["FixedTime", "Priority", "RangeMerge"])
def typed_slot(new_slot, request):
    return new_slot(request.param, keyed=True)


@pytest.fixture
def slot(new_slot):
    return new_slot("FixedTime", keyed=True, max_retries=1)


def score_in(slot):
    """A score by which a message of any type is due at once, or soon."""
    return 1 if slot.queue.definition.type.name == "RangeMerge" else 500


def send(slot, bodies, score=None):
    """Sends messages with bodies, by key."""
    score = score or score_in(slot)
    pairs = [value for key in bodies for value in (score, key)]
    packed = [value for key, body in bodies.items() for value in (key, body.pack())]
    return slot.queue.ask(sending.send, {0: pairs}, {0: packed})


def bodies_of(claim):
    return dict(zip(claim.contents, map(Body.parse, claim.bodies), strict=True))


def stored_bodies(slot):
    found = slot.redis.hgetall(slot.keys.bodies(0))
    return {key: Body.parse(text.removeprefix(b"~")) for key, text in found.items()}


def claim_due(slot, **options):
    """Claims when what was sent is due."""
    slot.wait_past(slot.now_ms() + 2)
    return slot.claim(**options)


def let_die(slot, key):
    """Uses up the retry of a message: its first two claims fail."""
    for seq in (1, 2):
        slot.claim(seq=seq)
        slot.rollback([key], f"a:{seq}:0:1")


def test_a_claim_hands_out_bodies_in_the_order_of_its_messages(typed_slot):
    sent = {key: Body(payload=b"of " + key, headers=(("h", key),)) for key in numbered(3)}
    send(typed_slot, sent)
    assert bodies_of(claim_due(typed_slot)) == sent
    typed_slot.check_conservation()
    assert typed_slot.commit().committed == 3
    typed_slot.check_conservation()
    assert not typed_slot.redis.exists(typed_slot.keys.bodies(0))


def test_the_last_body_wins(typed_slot):
    send(typed_slot, {b"k": FIRST})
    assert send(typed_slot, {b"k": LAST}).merged == 1
    assert bodies_of(claim_due(typed_slot)) == {b"k": LAST}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority", "RangeMerge"])
def test_of_equal_keys_in_one_call_the_first_body_stays_too(new_slot, topic_type, staged):
    slot = new_slot(topic_type, keyed=True, payload="first")
    send(slot, {b"k": FIRST})
    pairs = [value for key in (b"k", b"l", b"l") for value in (score_in(slot), key)]
    bodies = [b"k", LAST.pack(), b"l", FIRST.pack(), b"l", LAST.pack()]
    if staged:
        stages_of_slot = Stages(slot)
        stages_of_slot.stage(NAME, {0: pairs}, {0: 0}, {0: bodies})
        slot.queue.ask(staging.publish, {0: {NAME: 3}})
    else:
        slot.queue.ask(sending.send, {0: pairs}, {0: bodies})
    assert bodies_of(claim_due(slot)) == {b"k": FIRST, b"l": FIRST}


def test_the_first_body_stays_where_the_topic_says_so(new_slot):
    slot = new_slot("FixedTime", keyed=True, payload="first")
    send(slot, {b"k": FIRST})
    send(slot, {b"k": LAST}, 600)
    claim = slot.claim()
    assert bodies_of(claim) == {b"k": FIRST}
    assert claim.scores == [600]
    send(slot, {b"k": LAST})  # it waits as a message of its own
    slot.commit()
    assert bodies_of(slot.claim(seq=2)) == {b"k": LAST}


def test_a_key_sent_again_while_it_is_in_work_keeps_its_own_body(slot):
    send(slot, {b"k": FIRST})
    claim = slot.claim()
    assert send(slot, {b"k": LAST}).new == 1
    assert bodies_of(slot.claim()) == bodies_of(claim) == {b"k": FIRST}
    slot.commit()
    assert bodies_of(slot.claim(seq=2)) == {b"k": LAST}


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_newer_body_stays_when_the_older_message_is_rolled_back(slot, delay_ms):
    send(slot, {b"k": FIRST})
    slot.claim()
    send(slot, {b"k": LAST})
    slot.rollback([b"k"], delay_ms=delay_ms)
    slot.check_conservation()
    assert stored_bodies(slot) == {b"k": LAST}
    assert bodies_of(slot.claim(seq=2)) == {b"k": LAST}


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_message_that_is_rolled_back_keeps_its_body(slot, delay_ms):
    send(slot, {b"k": FIRST, b"l": LAST})
    slot.claim()
    slot.rollback([b"k"], delay_ms=delay_ms)
    slot.check_conservation()
    assert stored_bodies(slot) == {b"k": FIRST}
    assert bodies_of(slot.claim()) == {b"l": LAST}


def test_the_last_rollback_of_a_claim_leaves_no_bodies_behind(slot):
    send(slot, {b"k": FIRST, b"l": LAST})
    slot.claim()
    slot.rollback([b"k"])
    slot.rollback([b"l"])
    slot.check_conservation()
    assert stored_bodies(slot) == {b"k": FIRST, b"l": LAST}


def test_a_message_sent_again_while_it_waits_for_its_retry_has_the_new_body(slot):
    send(slot, {b"k": FIRST})
    slot.claim()
    slot.rollback([b"k"], delay_ms=60_000)
    send(slot, {b"k": LAST})
    slot.check_conservation()
    assert bodies_of(slot.claim(seq=2)) == {b"k": LAST}


@pytest.mark.parametrize("undelivered", [False, True])
def test_a_claim_that_is_given_back_keeps_its_bodies(slot, undelivered):
    sent = {key: Body(payload=key) for key in numbered(BODIES_A_PART + 1)}
    send(slot, sent)
    slot.claim()
    send(slot, {numbered(1)[0]: LAST})
    if undelivered:
        slot.queue.ask(claiming.unread, [0], "a", 1, 1)
    slot.release()
    slot.give_back_expired()
    slot.check_conservation()
    found = {}
    for seq in range(2, 8):  # suspects come in parts
        found |= bodies_of(slot.claim(seq=seq))
    assert found == sent | {numbered(1)[0]: LAST}


def test_a_dead_message_keeps_its_body_until_it_is_requeued(slot):
    send(slot, {b"k": FIRST, b"l": FIRST})
    for seq in (1, 2):
        slot.claim(seq=seq)
        slot.rollback([b"k", b"l"], f"a:{seq}:0:1", reasons=["a reason with blanks"])
    [page] = slot.queue.pages(QueueKind.DEAD, 0)
    assert [Body.parse(body) for body in page.bodies] == [FIRST, FIRST]
    assert page.reasons() == ["a reason with blanks"] * 2
    send(slot, {b"l": LAST})
    assert slot.queue.requeue({0: [b"k", b"l"]}) == 2
    slot.check_conservation()
    assert bodies_of(slot.claim(seq=3)) == {b"k": FIRST, b"l": LAST}


def test_a_buried_message_keeps_its_body(slot):
    send(slot, {b"k": FIRST, b"l": LAST})
    slot.claim()
    slot.rollback([b"k"], ending=Ending.BURY)
    slot.check_conservation()
    assert bodies_of(slot.claim()) == {b"l": LAST}
    slot.queue.requeue({0: [b"k"]})
    assert bodies_of(slot.claim(seq=2)) == {b"k": FIRST}


def test_a_requeued_message_takes_the_body_of_a_copy_that_waits_for_its_retry(slot):
    send(slot, {b"k": FIRST})
    let_die(slot, b"k")
    send(slot, {b"k": LAST})
    slot.claim(seq=3)
    slot.rollback([b"k"], "a:3:0:1", delay_ms=60_000)
    assert slot.queue.requeue({0: [b"k"]}) == 1
    assert bodies_of(slot.claim(seq=4)) == {b"k": LAST}


@pytest.mark.parametrize("way_back", ["at once", "after a wait", "given back", "unread"])
def test_what_was_requeued_gives_way_to_a_newer_body_that_comes_back(slot, way_back):
    send(slot, {b"k": FIRST})
    let_die(slot, b"k")
    send(slot, {b"k": LAST})
    slot.claim(seq=3)
    assert slot.queue.requeue({0: [b"k"]}) == 1
    [page] = slot.queue.pages(QueueKind.STORE, 0)
    assert [Body.parse(body) for body in page.bodies] == [FIRST]
    if way_back in ("at once", "after a wait"):
        slot.rollback([b"k"], "a:3:0:1", delay_ms=60_000 * (way_back == "after a wait"))
    else:
        if way_back == "unread":
            slot.queue.ask(claiming.unread, [0], "a", 1, 3)
        slot.release()
        slot.give_back_expired()
    slot.check_conservation()
    assert bodies_of(slot.claim(seq=4)) == {b"k": LAST}


def test_what_was_requeued_and_sent_again_keeps_the_body_that_was_sent(slot):
    send(slot, {b"k": FIRST})
    let_die(slot, b"k")
    send(slot, {b"k": FIRST})
    slot.claim(seq=3)
    assert slot.queue.requeue({0: [b"k"]}) == 1
    send(slot, {b"k": LAST})
    slot.rollback([b"k"], "a:3:0:1")
    assert bodies_of(slot.claim(seq=4)) == {b"k": LAST}


def test_what_was_requeued_and_sent_again_stays_where_the_first_body_does(new_slot):
    slot = new_slot("FixedTime", keyed=True, payload="first", max_retries=1)
    send(slot, {b"k": FIRST})
    let_die(slot, b"k")
    send(slot, {b"k": LAST})
    slot.claim(seq=3)
    assert slot.queue.requeue({0: [b"k"]}) == 1
    send(slot, {b"k": LAST})
    slot.rollback([b"k"], "a:3:0:1")
    assert bodies_of(slot.claim(seq=4)) == {b"k": FIRST}


def test_a_message_that_was_requeued_is_claimed_as_any_other(slot):
    """It is not taken for an older copy when it dies and is requeued again."""
    sent = {b"k": Body(payload=b"0000000000000600")}  # which looks like an expiry
    send(slot, sent)
    for round_ in (0, 2):
        for seq in (round_ + 1, round_ + 2):
            assert bodies_of(slot.claim(seq=seq)) == sent
            slot.rollback([b"k"], f"a:{seq}:0:1")
        assert slot.queue.requeue({0: [b"k"]}) == 1
    assert bodies_of(slot.claim(seq=5)) == sent


def test_a_slot_counts_the_large_bodies_that_it_was_sent(typed_slot):
    sizes = {b"a": 1, b"b": 8191, b"c": 8192, b"d": 16_384}  # and a character more
    send(typed_slot, {key: Body(payload=b"x" * size) for key, size in sizes.items()})
    assert int(typed_slot.redis.hget(typed_slot.keys.stats(0), "largeBodies")) == 2


@pytest.mark.parametrize("size", [10, 3000])
def test_rollbacks_take_their_bodies_out_of_every_part(typed_slot, size):
    """A part has at most 1024 bodies, or 64 KiB of them."""
    slot = typed_slot
    keys = numbered(BODIES_A_PART + 300)
    sent = {key: Body(payload=key * (size // 10)) for key in keys}
    send(slot, sent)
    claimed = claim_due(slot).contents
    a_part = min(BODIES_A_PART, BYTES_A_PART // len(sent[keys[0]].pack()))
    parts = [len(keys[at : at + a_part]) for at in range(0, len(keys), a_part)]
    order = slot.redis.hget(slot.keys.claim_bodies(0, "a:1:0"), "order")
    assert list(map(int, order.split()[1].split(b","))) == parts
    gone = [claimed[at] for at in (0, 1, 350, 1023, 1024, 1320, 1323)]
    slot.rollback(gone[3:] + gone[:1])
    slot.rollback(gone[1:3])
    slot.check_conservation()
    assert stored_bodies(slot) == {key: sent[key] for key in gone}
    [claim] = slot.queue.ask(claiming.claim, [ClaimRequest(0, 0)], TERMS)
    assert list(claim.contents) == [key for key in claimed if key not in gone]
    assert bodies_of(claim) == {key: sent[key] for key in claim.contents}
    found = {
        key: Body.parse(body)
        for page in slot.queue.pages(QueueKind.PREPARE, 0)
        for key, body in zip(page.contents, page.bodies, strict=True)
    }
    assert found == bodies_of(claim)
    slot.release()
    slot.give_back_expired()
    assert stored_bodies(slot) == sent


def test_pages_show_the_bodies_of_every_queue(slot):
    sent = {key: Body(payload=key) for key in numbered(20)}
    send(slot, sent)
    slot.claim(limit=15)
    slot.rollback(numbered(5), delay_ms=60_000)
    for kind, keys in (("store", 5), ("retry", 5), ("prepare", 10)):
        pages = slot.queue.pages(QueueKind(kind), 0)
        found = {
            key: Body.parse(body)
            for page in pages
            for key, body in zip(page.contents, page.bodies, strict=True)
        }
        assert len(found) == keys
        assert found == {key: sent[key] for key in found}


def test_cancel_and_purge_remove_bodies(slot):
    send(slot, {b"k": FIRST, b"l": FIRST, b"m": FIRST})
    slot.claim(limit=1)
    slot.rollback([b"k"], delay_ms=60_000)
    assert slot.queue.cancel({0: [b"l"]}) == 1
    assert slot.queue.purge({0: [b"m"]}, "store") == 1
    slot.check_conservation()
    assert slot.queue.purge({0: [b"k"]}, "retry") == 1
    slot.check_conservation()
    assert not slot.redis.exists(slot.keys.bodies(0))


def test_a_plain_message_takes_the_headers_of_an_equal_one_away(new_slot):
    slot = new_slot("FixedTime")
    send(slot, {b"m": Body(headers=(("h", b"v"),)), b"n": Body(headers=(("h", None),))})
    slot.queue.send([b"m"], fixed_time=500)
    assert bodies_of(slot.claim()) == {b"m": Body(), b"n": Body(headers=(("h", None),))}


def test_a_plain_message_claimed_beside_one_with_headers_leaves_no_body(new_slot):
    slot, of_m = new_slot("FixedTime", max_retries=1), Body(headers=(("h", b"v"),))
    send(slot, {b"m": of_m})
    slot.queue.send([b"n"], fixed_time=500)
    slot.claim()
    slot.rollback([b"m", b"n"])
    assert stored_bodies(slot) == {b"m": of_m}
    slot.claim(seq=2)
    slot.rollback([b"m", b"n"], "a:2:0:1")
    assert slot.queue.requeue({0: [b"m", b"n"]}) == 2
    assert stored_bodies(slot) == {b"m": of_m}


def test_a_plain_message_sent_while_one_with_headers_waits_for_its_retry_has_none(new_slot):
    slot = new_slot("FixedTime")
    send(slot, {b"m": Body(headers=(("h", b"v"),))})
    slot.claim()
    slot.rollback([b"m"], delay_ms=60_000)
    slot.queue.send([b"m"], fixed_time=500)
    assert slot.claim(seq=2).bodies == NO_BODIES


def test_each_group_has_its_own_bodies(broker, new_slot):
    slot = new_slot("FixedTime", keyed=True, groups=("", "g"))
    send(slot, {b"k": FIRST})
    assert bodies_of(slot.claim()) == {b"k": FIRST}
    other = broker.queue(slot.queue.definition.name, group="g")
    terms = claiming.Claiming("b", 1, 1, LONG_MS)
    [claim] = other.ask(claiming.claim, [ClaimRequest(0, 0)], terms)
    assert bodies_of(claim) == {b"k": FIRST}


def test_what_is_staged_is_published_with_its_bodies(typed_slot):
    slot, staged = typed_slot, Stages(typed_slot)
    keys = numbered(2700)
    pairs = [value for key in keys for value in (score_in(slot), key)]
    bodies = [value for key in keys for value in (key, Body(payload=key).pack())]
    held = {}
    staged.stage(NAME, {0: pairs}, held, {0: bodies})
    staged.stage(NAME, {0: pairs[:2]}, held, {0: [keys[0], LAST.pack()]})
    assert held == {0: 2701}
    assert slot.queue.ask(staging.publish, {0: {NAME: 2701}}).merged == 1
    expected = {key: Body(payload=key) for key in keys} | {keys[0]: LAST}
    assert bodies_of(claim_due(slot)) == expected


# -- expiry


def test_what_has_expired_is_never_handed_out(slot):
    expired = {key: Body(payload=key, expires_at_ms=600) for key in numbered(1500)}
    send(slot, expired | {b"stays": Body(expires_at_ms=slot.now_ms() + LONG_MS)})
    claim = slot.claim()
    assert claim.contents == [b"stays"]
    assert claim.expired == 1500
    assert slot.counters["expired"] == 1500
    slot.check_conservation()
    assert slot.claim().expired == slot.records["a:1:0"].expired == 1500
    assert slot.commit().expired == 1500
    slot.check_conservation()


def test_a_time_to_live_counts_from_when_the_message_is_due(slot):
    now = slot.now_ms()
    send(slot, {b"over": Body(time_to_live_ms=1000)}, now - 1000)
    send(slot, {b"lives": Body(payload=b"p", time_to_live_ms=LONG_MS)}, now - 1000)
    left = Body(payload=b"p", expires_at_ms=now - 1000 + LONG_MS)
    assert bodies_of(slot.claim()) == {b"lives": left}


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_a_time_to_live_that_is_staged_begins_when_the_message_is_published_or_due(
    new_slot, topic_type
):
    slot = new_slot(topic_type, keyed=True)
    score = 50 if topic_type == "Priority" else slot.now_ms() - 2 * LONG_MS
    body = Body(payload=b"p", time_to_live_ms=LONG_MS)
    Stages(slot).stage(NAME, {0: [score, b"k"]}, {0: 0}, {0: [b"k", body.pack()]})
    slot.queue.ask(staging.publish, {0: {NAME: 1}})
    claim = slot.claim()
    # A priority says nothing about time.
    assert claim.contents == ([b"k"] if topic_type == "Priority" else [])
    assert claim.expired == (0 if topic_type == "Priority" else 1)


def test_a_payload_of_digits_is_no_expiry(slot):
    sent = {b"k": Body(payload=b"0000000000000001"), b"l": Body(headers=(("h", b"1" * 20),))}
    send(slot, sent)
    assert bodies_of(slot.claim()) == sent


def test_a_time_of_expiry_is_kept_in_every_type(typed_slot):
    late = typed_slot.now_ms() + LONG_MS
    sent = {b"over": Body(expires_at_ms=600), b"lives": Body(payload=b"p", expires_at_ms=late)}
    send(typed_slot, sent)
    assert bodies_of(claim_due(typed_slot)) == {b"lives": sent[b"lives"]}


@pytest.mark.parametrize("topic_type", ["Priority", "RangeMerge"])
def test_a_time_to_live_begins_when_there_is_no_due_time_given(new_slot, topic_type):
    slot = new_slot(topic_type, keyed=True)
    before = slot.now_ms()
    send(slot, {key: Body(payload=key, time_to_live_ms=LONG_MS) for key in numbered(3)})
    claim = claim_due(slot)
    bodies = bodies_of(claim)
    assert sorted(bodies) == numbered(3)
    for key, body in bodies.items():
        assert body.payload == key
        assert before + LONG_MS <= body.expires_at_ms <= slot.now_ms() + LONG_MS + 1
    slot.rollback(claim.contents)
    assert bodies_of(slot.claim(seq=2)) == bodies


def test_a_time_to_live_sent_for_a_retry_counts_from_its_claim(new_slot):
    """The retry keeps its number of retries as score, and no due time."""
    slot = new_slot("RangeMerge", keyed=True)
    send(slot, {b"k": FIRST})
    claim_due(slot)
    slot.rollback([b"k"])
    send(slot, {b"k": Body(time_to_live_ms=LONG_MS)})
    assert slot.claim(seq=2).contents == [b"k"]


def test_the_expired_are_counted_by_themselves_among_many_reasons(new_slot):
    slot = new_slot("FixedTime", keyed=True, on_expiry="dead")
    slot.redis.hset(slot.keys.stats(0), mapping={f"dead:C{number}": 0 for number in range(40)})
    send(slot, {b"k": Body(expires_at_ms=600)})
    slot.claim()
    deaths = slot.queue.figures().deaths
    assert {reason: count for reason, count in deaths.items() if count} == {"expired": 1}


def test_what_expires_goes_to_the_dead_queue_where_the_topic_says_so(new_slot):
    slot = new_slot("FixedTime", keyed=True, on_expiry="dead")
    send(slot, {b"k": Body(payload=b"p", expires_at_ms=600)})
    assert slot.claim().contents == []
    [page] = slot.queue.pages(QueueKind.DEAD, 0)
    [entry] = page.entries()
    assert (entry.consumer, entry.reason) == (None, "expired")
    assert slot.queue.figures().deaths == {"expired": 1}
    slot.check_conservation()
    slot.queue.requeue({0: [b"k"]})
    assert list(slot.claim(seq=2).bodies) == [Body(payload=b"p").pack()]


def test_an_expired_retry_and_first_deliveries_take_turns_at_a_limit_of_one(new_slot):
    """What has expired takes its turn, although the claim gets nothing."""
    for on_expiry in ("drop", "dead"):
        slot = new_slot("Priority", keyed=True, on_expiry=on_expiry)
        send(slot, {b"retry": FIRST, b"held": FIRST})
        slot.claim()
        slot.rollback([b"retry"])
        send(slot, {key: Body(expires_at_ms=600) for key in numbered(4)})
        claims = [slot.claim(seq=seq, limit=1).contents for seq in (2, 3)]
        assert [b"retry"] in claims
        slot.check_conservation()


def test_messages_that_expire_while_they_wait_for_their_retry_are_not_delivered(slot):
    expires = slot.now_ms() + 1000
    send(slot, {b"k": Body(payload=b"p", expires_at_ms=expires), b"l": LAST})
    claim = slot.claim()
    assert set(claim.contents) == {b"k", b"l"}
    slot.rollback([b"k", b"l"], delay_ms=1)
    # The waits end at the next full second.
    slot.wait_past(max(expires, *(score // 1000 * 1000 for score in slot.retry.values())))
    claim = slot.claim(seq=2)
    assert (claim.contents, claim.expired) == ([b"l"], 1)
    slot.check_conservation()


def test_a_claim_read_again_has_the_same_messages_though_they_have_expired_since(slot):
    expires = slot.now_ms() + 500
    sent = {key: Body(payload=key, expires_at_ms=expires) for key in numbered(3)}
    send(slot, sent)
    first = slot.claim()
    slot.wait_past(expires)
    assert slot.queue.ask(claiming.renew, [0], "a", 1, 2 * LONG_MS) == {0: 1}
    assert bodies_of(slot.claim()) == bodies_of(first) == sent
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)
    again = slot.claim(run=2, replay_only=True)
    assert (bodies_of(again), again.scores) == (sent, first.scores)
    assert slot.records["a:1:0"].expired == again.expired == 0
    slot.rollback([], "a:1:0:2")
    assert slot.commit(run=2).committed == 3


# -- large ones, and parts


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_a_claim_takes_only_so_many_bytes_of_bodies(new_slot, topic_type):
    slot = new_slot(topic_type, keyed=True)
    sent = {key: Body(payload=key * 200_000) for key in numbered(30)}  # 1.2 MB each
    for score, (key, body) in enumerate(sent.items()):
        send(slot, {key: body}, 500 + (100 - score if slot.queue.queues.descending else score))
    taken = []
    for seq in range(1, 6):
        claim = slot.claim(seq=seq)
        assert bodies_of(claim) == {key: sent[key] for key in claim.contents}
        assert len(claim.contents) <= 8
        slot.check_conservation()
        slot.commit(seq=seq)
        taken += claim.contents
    assert taken == list(sent)


def test_a_claim_takes_one_body_however_large_and_no_other_behind_it(slot):
    large = Body(payload=b"x" * 20 * 2**20)
    sent = {key: Body(payload=key) for key in numbered(2000)} | {b"n": large, b"o": large}
    for score, keys in enumerate((numbered(2000), [b"n"], [b"o"])):
        send(slot, {key: sent[key] for key in keys}, 500 + score)
    for seq, keys in enumerate(([*numbered(2000), b"n"], [b"o"]), start=1):
        claim = slot.claim(seq=seq)
        assert claim.contents == keys
        assert bodies_of(claim) == {key: sent[key] for key in keys}
        slot.check_conservation()


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_large_bodies_of_one_kind_leave_room_for_the_other(new_slot, topic_type):
    """Retries and first deliveries: of the kind that comes last there is always one."""
    slot = new_slot(topic_type, keyed=True)
    sent = {key: Body(payload=key * 416_667) for key in numbered(9)}  # 2.5 MB each
    send(slot, {key: sent[key] for key in numbered(4)})
    assert sorted(slot.claim().contents) == numbered(4)
    slot.rollback(numbered(4))
    send(slot, {key: sent[key] for key in numbered(9)[4:]})
    claim = slot.claim(seq=2)
    assert bodies_of(claim) == {key: sent[key] for key in claim.contents}
    of_retries = [key in numbered(4) for key in claim.contents]
    descending = bool(slot.queue.queues.descending)
    assert of_retries == [*[not descending] * 3, descending]
    slot.check_conservation()


@pytest.mark.parametrize("rolled_back", [0, 1])
@pytest.mark.parametrize("rows", [1, 700, BODIES_A_PART])
def test_a_claim_can_be_read_in_parts(typed_slot, rows, rolled_back):
    slot = typed_slot
    sent = {key: Body(payload=key) for key in numbered(2 * BODIES_A_PART + 3)}
    send(slot, sent)
    slot.wait_past(slot.now_ms() + 2)
    [part] = slot.queue.ask(claiming.claim, [ClaimRequest(0, 0, rows=2 * rows)], TERMS)
    gone = part.contents[:rolled_back]
    slot.rollback(gone)
    found = bodies_of(part)
    for _ in range(3):
        part = slot.queue.ask(claiming.read_on, part, TERMS, rows)
        found |= bodies_of(part)
    assert found == {key: sent[key] for key in found}
    assert len(found) > 2 * rows


def test_a_rollback_between_a_claim_and_its_first_read_mixes_up_no_bodies(typed_slot):
    """The script counts the messages; another process may take one before they are read."""
    slot = typed_slot
    sent = {key: Body(payload=key) for key in numbered(5)}
    send(slot, sent)
    first = claim_due(slot).contents[0]
    conversation = claiming.claim(slot.queue.queues, [ClaimRequest(0, 0, rows=2)], TERMS)
    request = next(conversation)
    made = slot.queue.server.pipeline(request.calls[:1])
    slot.rollback([first])
    replies = made + slot.queue.server.pipeline(request.calls[1:])
    while True:
        try:
            request = conversation.send(request.parse(replies))
        except StopIteration as end:
            [claim] = end.value
            break
        replies = slot.queue.server.pipeline(request.calls)
    assert first not in claim.contents
    assert bodies_of(claim) == {key: sent[key] for key in claim.contents}


def test_bodies_that_a_deleted_claim_has_left_are_nobodys(new_slot):
    """Somebody has deleted the claim and its record by hand, but not its bodies."""
    slot = new_slot("FixedTime")
    send(slot, {b"m": Body(headers=(("h", b"v"),))})
    slot.claim()
    left = slot.redis.dump(slot.keys.claim_bodies(0, "a:1:0"))
    slot.commit()
    slot.redis.restore(slot.keys.claim_bodies(0, "a:2:0"), 0, left)
    slot.queue.send([b"n"], fixed_time=500)
    assert slot.claim(seq=2).bodies == NO_BODIES


def test_a_claim_whose_bodies_are_deleted_is_lost(slot):
    send(slot, {b"k": FIRST})
    slot.claim()
    slot.redis.delete(slot.keys.claim_bodies(0, "a:1:0"))
    with pytest.raises(Exception, match="should have 1 bodies, but Redis has 0"):
        slot.claim()
    slot.commit()


def test_a_first_delivery_goes_with_a_retry_that_is_larger_than_a_claim_may_be(slot):
    send(slot, {b"large": Body(payload=bytes(9 * 2**20))})
    slot.claim()
    slot.rollback([b"large"])
    send(slot, {b"small": LAST})
    assert slot.claim(seq=2).contents == [b"large", b"small"]


def test_a_rollback_beside_a_large_body_writes_little(slot):
    """A rollback rewrites the part of its message; 50 MiB in it would keep Redis for 0.5 s."""
    keys, large = numbered(6), [100, 2**20, 100, 2**16, 40_000, 40_000]
    send(slot, {key: Body(payload=b"x" * size) for key, size in zip(keys, large, strict=True)})
    claim = slot.claim()
    of_claim = slot.redis.hgetall(slot.keys.claim_bodies(0, "a:1:0"))
    assert of_claim[b"order"] == b"asc 1,1,1,1,1,1"
    slot.rollback(keys[:1])
    assert list(slot.claim().bodies) == list(claim.bodies)[1:]
