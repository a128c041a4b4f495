"""The loop of a plain Python program: take, work, commit."""

import threading
from contextlib import ExitStack
from datetime import timedelta

import pytest

from rmq_spark.client import Message, connect
from rmq_spark.errors import (
    ConsumerMisused,
    ExclusiveSlot,
    Fenced,
    InvalidOption,
    LeaseLost,
    UnknownTopic,
)
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.calls import Call
from rmq_spark.protocol.claims import ClaimRequest

from ..logs import logged
from ..seeding import LONG_MS, Slot, numbered
from ..waiting import wait_until


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 4)
    return broker.queue("T")


def contents(batch):
    return sorted(message.content for message in batch)


def taken_by(consumer):
    """All that is due, committed: contents and how often they were delivered."""
    taken = {}
    for batch in consumer.batches(wait=False):
        taken |= {message.content: message.delivery_count for message in batch}
        batch.commit()
    return taken


def topic_run(queue, consumer):
    return max(header.run for header in queue.ask(reading.headers, consumer))


def test_a_loop_takes_everything_once_and_ends_when_nothing_is_due(broker, topic):
    topic.send(numbered(100), fixed_time=1000)
    topic.send([b"far"], fixed_time=10**13)
    seen = []
    with broker.consumer("T", "a") as consumer:
        for batch in consumer.batches(limit=7, wait=False):
            assert len(batch) <= 7
            seen += contents(batch)
            assert batch.commit() == len(batch)
    assert sorted(seen) == numbered(100)
    figures = topic.figures()
    assert (figures.counters["committed"], figures.prepare.count) == (100, 0)


def test_a_loop_that_waits_takes_what_comes_due_later(broker, topic):
    with broker.consumer("T", "a") as consumer:
        topic.send([b"later"], fixed_time=topic.now_ms() + 30)
        batch = next(consumer.batches())
    assert contents(batch) == [b"later"]


def test_a_message_tells_where_it_comes_from(broker):
    broker.create("P", "Priority", 1)
    broker.queue("P").send([b"m"], priority=77)
    with broker.consumer("P", "a") as consumer:
        [message] = consumer.poll()
    assert (message.topic, message.slot, message.priority, message.due_time_ms) == (
        "P",
        0,
        77,
        None,
    )
    assert (message.delivery_count, message.retries_left) == (1, 16)
    assert message.claim_id == f"a:1:0:{topic_run(broker.queue('P'), 'a')}"


def test_the_highest_priority_of_all_slots_comes_first(broker):
    """Failed before: a consumer took slots in turn, whatever waited in them."""
    broker.create("P", "Priority", 8)
    queue = broker.queue("P")
    queue.send(Message(content, priority=100 + at) for at, content in enumerate(numbered(64)))
    taken = []
    with broker.consumer("P", "a") as consumer:
        for batch in consumer.batches(limit=1, wait=False):
            taken += [message.priority for message in batch]
            batch.commit()
    in_turn = [at for at in range(64) if taken[at] != max(taken[at:])]
    assert sorted(taken) == list(range(100, 164))
    assert 1 <= len(in_turn) <= 64 // 8 + 1  # a slot in turn
    assert taken[:3] == [163, 162, 161]


def test_no_slot_is_starved_by_higher_priorities(broker):
    broker.create("P", "Priority", 8)
    queue = broker.queue("P")
    queue.send([one for one in numbered(2000) if queue.definition.slot_of(one) < 7], priority=900)
    low = next(f"low{n}" for n in range(1000) if queue.definition.slot_of(f"low{n}") == 7)
    queue.send([low], priority=17)
    with broker.consumer("P", "a") as consumer:
        taken = 0
        for batch in consumer.batches(limit=1, wait=False):
            [message] = batch
            batch.commit()
            taken += 1
            if message.content == low.encode():
                break
    assert taken <= 8 * 9


def test_what_is_rolled_back_comes_again_and_the_rest_is_committed(broker, topic):
    topic.send(numbered(5), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        bad = [message for message in batch if message.content < b"m00002"]
        assert batch.rollback(bad) == 2
        assert batch.commit() == 3
        again = consumer.poll()
        assert contents(again) == numbered(2)
        assert {(m.delivery_count, m.retries_left, m.due_time_ms) for m in again} == {(2, 15, None)}


def test_a_rollback_without_messages_rolls_the_whole_batch_back(broker, topic):
    topic.send(numbered(5), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        assert batch.rollback() == 5
        assert batch.commit() == 0
        assert contents(consumer.poll()) == numbered(5)


@pytest.mark.parametrize("delay", ["1h", LONG_MS, timedelta(milliseconds=LONG_MS)])
def test_a_rollback_with_a_delay_waits(broker, topic, delay):
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        batch.rollback(delay=delay)
        batch.commit()
        assert len(consumer.poll()) == 0
    waiting = topic.figures().retry
    assert waiting.count == 1
    assert waiting.oldest_ms > topic.now_ms() + LONG_MS - 60_000


@pytest.mark.parametrize("delay", ["1", "1 week", -1, 1.5, True, timedelta(seconds=-1)])
def test_a_delay_that_is_no_duration_is_refused_and_the_batch_stays(broker, topic, delay):
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        with pytest.raises(InvalidOption) as refused:
            batch.rollback(delay=delay)
        assert str(refused.value) == (
            f"delay={delay!r} is not a duration. Accepted: a number with its unit, one of ms, s, "
            "m, h or d, such as 500ms, 60s or 5m; a timedelta; or whole milliseconds."
        )
        assert batch.commit() == 1


def test_a_batch_that_was_not_committed_is_given_back(broker, topic):
    topic.send(numbered(5), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        assert contents(consumer.poll()) == numbered(5)
        again = consumer.poll()
        assert contents(again) == numbered(5)
        assert {message.delivery_count for message in again} == {2}


def test_an_exception_gives_the_batch_to_the_next_consumer(broker, topic):
    topic.send(numbered(5), fixed_time=1000)
    with pytest.raises(ZeroDivisionError), broker.consumer("T", "a") as consumer:
        len(consumer.poll()) // 0
    with broker.consumer("T", "b") as other:
        assert taken_by(other) == dict.fromkeys(numbered(5), 1)  # which it costs nothing


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_an_end_from_outside_costs_no_retry_and_keeps_the_order(broker, topic, end):
    """Failed before: a message that was alone in work at each of three stops died."""
    for number, content in enumerate(reversed(numbered(4))):
        topic.send([content], fixed_time=1000 + number, slot_basis=b"one")

    def work():
        with broker.consumer("T", "a") as consumer:
            assert consumer.poll(limit=1)
            raise end

    for _ in range(topic.definition.max_retries + 3):
        with pytest.raises(end):
            work()
    with broker.consumer("T", "b") as other:
        batch = other.poll()
        assert [message.content for message in batch] == numbered(4)[::-1]
        assert {message.delivery_count for message in batch} == {1}


def test_a_consumer_that_another_of_its_name_replaced_does_not_say_that_it_keeps_messages(
    broker, topic, caplog
):
    topic.send([b"m"], fixed_time=1000)

    def replaced():
        with broker.consumer("T", "a") as old:
            old.poll()
            with broker.consumer("T", "a") as new:
                assert new.poll().commit() == 1
            old.poll()

    with pytest.raises(Fenced):
        replaced()
    assert "keeps its messages" not in caplog.text


def test_a_block_whose_caller_has_caught_that_another_replaced_it_ends_without_that_error(
    broker, topic, caplog
):
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "a") as old:
        batch = old.poll()
        with broker.consumer("T", "a") as new:
            assert new.poll().commit() == 1
        with pytest.raises(Fenced):
            batch.commit()
    assert "rmq: consumer a ends: " in caplog.text


def test_a_batch_kept_past_the_next_poll_cannot_commit_that_one(broker, topic):
    """Its own messages were given back; those of the newer batch nobody has worked on yet."""
    topic.send(numbered(4), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        old = consumer.poll(limit=2)
        new = consumer.poll(limit=2)
        with pytest.raises(LeaseLost, match="given back"):
            old.commit()
        with pytest.raises(LeaseLost):
            old.renew()
        assert topic.figures().counters["committed"] == 0
        assert new.commit() == 2


def test_a_batch_cannot_be_committed_once_the_consumer_is_closed(broker, topic):
    topic.send(numbered(2), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
    with pytest.raises(LeaseLost):
        batch.commit()


def test_a_second_commit_of_a_batch_changes_nothing(broker, topic):
    topic.send(numbered(2), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        assert [batch.commit(), batch.commit()] == [2, 0]


def test_an_uncommitted_batch_is_never_committed_with_the_next(broker):
    """A claim gave back at most 4096 messages. With more of others' that had expired, the
    consumer's own last batch stayed behind, and its next commit removed that too: lost."""
    slot = Slot(broker, "One", "FixedTime")
    slot.put_due(numbered(3 * 2048 + 10))
    for ordinal in range(3):
        slot.claim("b", ordinal=ordinal, limit=2048)
    with broker.consumer("One", "a") as consumer:
        assert len(consumer.poll()) == 10
        slot.release("b")
        batch = consumer.poll(limit=1)
        assert batch.commit() == 1
    assert slot.counters["committed"] == 1
    slot.check_conservation()


def test_a_second_start_takes_over_and_the_first_fails(broker, topic):
    topic.send(numbered(3), fixed_time=1000)
    first = broker.consumer("T", "a")
    batch = first.poll()
    with broker.consumer("T", "a") as second:
        taken = second.poll()
        for action in (batch.commit, batch.renew, first.poll, first.close):
            with pytest.raises(Fenced):
                action()
        assert taken.commit() == len(taken)
        assert contents(taken) + list(taken_by(second)) == numbered(3)


def test_a_consumer_goes_on_after_its_last_batch(broker, topic):
    for round_ in range(3):
        topic.send([b"%d" % round_], fixed_time=1000)
        with broker.consumer("T", "a") as consumer:
            batch = consumer.poll()
            assert contents(batch) == [b"%d" % round_]
            batch.commit()


def test_consumers_share_a_topic_and_one_name_serves_many_topics_and_groups(broker):
    broker.create("T", "FixedTime", 4, groups=("", "g"))
    broker.create("U", "FixedTime", 4)
    for name in ("T", "U"):
        broker.queue(name).send(numbered(3), fixed_time=1000)
    consumers = [
        broker.consumer("T", "a"),
        broker.consumer("T", "a", group="g"),
        broker.consumer("U", "a"),
    ]
    for consumer in consumers:
        batch = consumer.poll()
        assert contents(batch) == numbered(3)
        assert batch.commit() == 3


def test_claims_of_others_cost_no_round_trip(broker, topic, monkeypatch):
    """The figures that a poll begins with name them."""
    scripts, held, pipeline = [], 0, broker.server.pipeline
    with ExitStack() as consumers:
        for name in "abc":
            topic.send(numbered(50), fixed_time=1000)
            held += len(consumers.enter_context(broker.consumer("T", name)).poll(limit=8))
        topic.send(numbered(50), fixed_time=1000)  # also what they hold
        last = consumers.enter_context(broker.consumer("T", "d"))

        def noted(calls):
            scripts.append({call.script for call in calls if isinstance(call, Call)})
            return pipeline(calls)

        monkeypatch.setattr(broker.server, "pipeline", noted)
        assert len(last.poll()) == 50 - held
    assert scripts.count({"claim"}) == 1


def test_a_renewed_lease_is_not_taken(broker, topic):
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "a", visibility_timeout="1h") as consumer:
        batch = consumer.poll()
        slot = topic.definition.slot_of(b"m")
        topic.ask(claiming.renew, [slot], "a", topic_run(topic, "a"), 0)
        batch.renew()
        assert len(broker.consumer("T", "b").poll()) == 0
        assert batch.commit() == 1


def test_a_small_limit_starves_no_slot(broker, topic):
    topic.send(numbered(400), fixed_time=1000)
    seen = set()
    with broker.consumer("T", "a") as consumer:
        for _ in range(4):
            batch = consumer.poll(limit=1)
            seen |= {message.slot for message in batch}
            batch.commit()
    assert seen == {0, 1, 2, 3}


def test_a_paused_topic_gives_nothing(broker, topic):
    topic.send([b"m"], fixed_time=1000)
    broker.alter("T", paused=True)
    with broker.consumer("T", "a") as consumer:
        assert len(consumer.poll()) == 0
    broker.alter("T", paused=False)
    with broker.consumer("T", "a") as consumer:
        assert len(consumer.poll()) == 1


def test_an_exclusive_topic_is_refused(broker):
    broker.create("T", "FixedTime", 1, exclusive=True)
    with pytest.raises(ExclusiveSlot, match="T is exclusive"):
        broker.consumer("T", "a")


def test_a_slot_that_others_own_by_now_is_refused(broker, topic, redis_url):
    consumer = broker.consumer("T", "a")
    with connect(redis_url, key_prefix=broker.key_prefix) as other:
        other.alter("T", exclusive=True)
    topic.ask(
        claiming.claim,
        [ClaimRequest(0, 0)],
        claiming.Claiming(consumer="q", run=1, seq=1, lease_ms=LONG_MS, epochs={0: 1}),
    )
    with pytest.raises(ExclusiveSlot):
        consumer.poll()


def test_a_consumer_of_an_unknown_topic_does_not_create_it(broker):
    with pytest.raises(UnknownTopic, match="The topic T does not exist"):
        broker.consumer("T", "a")
    assert broker.topics() == []


@pytest.mark.parametrize("name", ["", "a b", "a:b", "@epoch", "x" * 201, "\u00e4"])
def test_a_name_that_is_none_is_refused(broker, topic, name):
    with pytest.raises(InvalidOption, match="consumer name"):
        broker.consumer("T", name)


def test_a_long_name_is_shown_by_its_beginning(broker, topic):
    with pytest.raises(InvalidOption, match="consumer name") as refused:
        broker.consumer("T", "x" * 100_000)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("timeout", ["60", "0s", "0ms", "soon", "", "-1s", "367d"])
def test_a_visibility_timeout_that_is_none_is_refused(broker, topic, timeout):
    with pytest.raises(InvalidOption, match="visibility_timeout"):
        broker.consumer("T", "a", visibility_timeout=timeout)


def test_a_limit_below_one_is_refused(broker, topic):
    with pytest.raises(InvalidOption, match="limit=0"):
        broker.consumer("T", "a").poll(limit=0)
    with pytest.raises(InvalidOption, match=r"limit='3' .* a whole number, 1 or more"):
        broker.consumer("T", "a").poll("3")


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"x" * 2**20])
def test_a_content_comes_back_as_it_was_sent(broker, topic, content):
    assert topic.send([content], fixed_time=1000).new == 1
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll()
        assert contents(batch) == [content]
        assert batch.rollback() == 1
        again = consumer.poll()
        assert contents(again) == [content]
        assert again.commit() == 1


def test_a_running_consumer_sees_that_its_topic_is_paused_and_goes_on(broker, topic):
    topic.send(numbered(4), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        broker.alter("T", paused=True)
        assert len(consumer.poll()) == 0
        broker.alter("T", paused=False)
        assert len(consumer.poll()) == 4


def test_a_consumer_of_a_topic_that_is_deleted_meanwhile_says_so(broker, topic):
    consumer = broker.consumer("T", "a")
    broker.delete("T")
    with pytest.raises(UnknownTopic, match="The topic T does not exist"):
        consumer.poll()


def test_a_consumer_leaves_no_key_behind_the_deletion_of_its_topic(broker, topic):
    """Failed before: its commit, its next batch and its end each left a key for ever."""
    before = set(broker.server.client.keys(f"{broker.key_prefix}*"))
    topic.send(numbered(20), fixed_time=1000)
    consumers = [broker.consumer("T", name) for name in ("commits", "polls", "closes")]
    batches = [consumer.poll(5) for consumer in consumers]
    assert all(batches)
    broker.delete("T")
    with pytest.raises(LeaseLost):
        batches[0].commit()
    with pytest.raises(UnknownTopic):
        consumers[1].poll()
    consumers[2].close()
    assert set(broker.server.client.keys(f"{broker.key_prefix}*")) <= before


def test_what_the_program_raised_is_not_hidden_by_a_server_that_went_too(own_redis, caplog):
    broker = connect(own_redis.url, patience_s=0.1)
    broker.create("T", "FixedTime", 1)
    broker.queue("T").send([b"m"], fixed_time=1000)

    def work():
        with broker.consumer("T", "a") as consumer:
            consumer.poll()
            own_redis.kill()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()
    assert "keeps its messages until the lease ends" in logged(caplog)


@pytest.fixture
def long_expired(broker):
    """A slot with thousands of expired messages, and one behind them that is not."""
    broker.create("Old", "FixedTime", 1)
    queue = broker.queue("Old")
    for start in range(0, 6000, 2000):
        contents = [f"{start + n}" for n in range(2000)]
        queue.send(contents, fixed_time=1000, expires_at=2000)
    queue.send(["live", "live too"], fixed_time=5000)
    return queue


def test_a_small_limit_does_not_make_expired_messages_slow(broker, long_expired, monkeypatch):
    """Each call once dropped as many as the limit: three minutes for 200 000, at 10."""
    with broker.consumer("Old", "a") as consumer:
        calls, ask = [], type(long_expired).ask
        monkeypatch.setattr(
            type(long_expired), "ask", lambda *args, **more: calls.append(1) or ask(*args, **more)
        )
        batch = consumer.poll(1)
        assert [message.content for message in batch] == [b"live"]
        assert batch.commit() == 1
        assert len(calls) < 100
        assert [m.delivery_count for m in consumer.poll(1)] == [1], "its look cost no retry"
    assert long_expired.figures().counters["expired"] == 6000


def test_a_poll_that_drops_expired_messages_ends_with_its_wait(broker, long_expired, monkeypatch):
    monkeypatch.setattr("rmq_spark.client.receiving.consumer.MESSAGES_A_CLAIM", 1)
    with broker.consumer("Old", "a") as consumer:
        assert len(consumer.poll(1, wait="1ms")) == 0
    assert 0 < long_expired.figures().counters["expired"] < 6000


def test_a_consumer_that_is_closed_while_it_drops_expired_messages_stops(
    broker, long_expired, monkeypatch
):
    monkeypatch.setattr("rmq_spark.client.receiving.consumer.MESSAGES_A_CLAIM", 1)
    consumer = broker.consumer("Old", "a").__enter__()
    failed = []

    def poll():
        try:
            consumer.poll(1)
        except ConsumerMisused as error:
            failed.append(error)

    polling = threading.Thread(target=poll)
    polling.start()
    wait_until(lambda: long_expired.figures().counters["expired"], "the first that is dropped")
    consumer.close()
    polling.join()
    assert "is closed" in str(failed)
    assert long_expired.figures().counters["expired"] < 6000
