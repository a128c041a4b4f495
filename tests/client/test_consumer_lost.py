"""A batch of which something was lost: the lease ran out, or it was given back."""

import pytest

from rmq_spark.client import connect
from rmq_spark.client.queue import Queue, overview_of
from rmq_spark.errors import LeaseLost, ServerUnavailable
from rmq_spark.protocol import claiming, reading, returning
from rmq_spark.protocol.claims import ClaimRequest

from ..seeding import LONG_MS, numbered, rollback


@pytest.fixture
def topic(broker):
    """50 messages in 4 slots."""
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    queue.send(numbered(50), fixed_time=1000)
    return queue


@pytest.fixture
def consumer(broker, topic):
    with broker.consumer("T", "a") as made:
        yield made


def contents(batch):
    return sorted(message.content for message in batch)


def kept(batch):
    """The messages of a batch, which is committed."""
    batch.commit()
    return list(batch)


def run_of(queue, consumer):
    return max(header.run for header in queue.ask(reading.headers, consumer))


def in_slots(batch, slots):
    return [message for message in batch if message.slot in slots]


def end_leases(queue, slots, consumer="a"):
    queue.ask(claiming.renew, slots, consumer, run_of(queue, consumer), 0)


def lose(queue, slots, consumer="a"):
    """Ends the leases there and gives the messages to b, as if the work took too long."""
    end_leases(queue, slots, consumer)
    queue.ask(returning.give_back_expired, queue.ask(reading.due, slots, "b"), "b")
    requests = [ClaimRequest(slot, 0) for slot in slots]
    return queue.ask(
        claiming.claim, requests, claiming.Claiming(consumer="b", run=1, seq=1, lease_ms=LONG_MS)
    )


def test_a_batch_of_a_slow_consumer_is_taken_by_another_and_its_commit_says_so(broker, topic):
    with (
        broker.consumer("T", "slow", visibility_timeout="1ms") as slow,
        broker.consumer("T", "other") as other,
    ):
        batch = slow.poll()
        taken = []
        while len(taken) < 50:
            one = other.poll()
            taken += contents(one)
            one.commit()
        assert sorted(taken) == contents(batch)
        for call in (batch.renew, batch.commit):
            with pytest.raises(
                LeaseLost, match=r"Consumer slow no longer holds 50 of 50 messages of its batch"
            ):
                call()
        assert batch.rollback() == 0
        assert batch.commit() == 0


def test_a_commit_names_what_was_lost_after_committing_the_rest(topic, consumer):
    batch = consumer.poll()
    lost = len(in_slots(batch, {1, 2}))
    lose(topic, [1, 2])
    with pytest.raises(LeaseLost, match=rf" holds {lost} of 50 messages") as raised:
        batch.commit()
    assert f"{50 - lost} are committed" in str(raised.value)
    assert "visibility_timeout, 60000 ms" in str(raised.value)
    figures = topic.figures()
    assert figures.counters["committed"] == 50 - lost
    assert figures.prepare.count + figures.store.count == lost


def test_what_was_given_back_and_waits_in_the_store_is_lost_as_well(topic, consumer):
    batch = consumer.poll()
    end_leases(topic, [0])
    assert topic.expire() == len(in_slots(batch, {0}))
    with pytest.raises(LeaseLost):
        batch.commit()
    again = [message for batch in consumer.batches(wait=False) for message in kept(batch)]
    assert contents(again) == contents(in_slots(batch, {0}))


def test_a_second_commit_after_a_loss_changes_nothing(topic, consumer):
    batch = consumer.poll()
    lose(topic, [3])
    with pytest.raises(LeaseLost):
        batch.commit()
    committed = topic.figures().counters["committed"]
    assert batch.commit() == 0
    assert batch.renew() is None
    assert topic.figures().counters["committed"] == committed


def test_a_renewal_names_what_was_lost_after_renewing_the_rest(topic, consumer):
    batch = consumer.poll()
    end_leases(topic, [0, 1, 2])
    lose(topic, [3])
    with pytest.raises(LeaseLost, match=rf" holds {len(in_slots(batch, {3}))} of 50 messages"):
        batch.renew()
    assert topic.expire() == 0


def test_a_batch_that_was_held_all_the_time_is_renewed_and_committed(topic, consumer):
    batch = consumer.poll()
    end_leases(topic, topic.slots)
    batch.renew()
    assert topic.expire() == 0
    assert batch.commit() == 50


def test_a_lease_that_ran_out_unnoticed_loses_nothing(topic, consumer):
    batch = consumer.poll()
    end_leases(topic, topic.slots)
    assert batch.commit() == 50


def test_what_the_caller_rolled_back_is_not_lost(topic, consumer):
    batch = consumer.poll()
    some = [message for message in batch if message.slot < 2]
    assert batch.rollback(some) == len(some)
    assert batch.rollback(some) == 0
    batch.renew()
    assert batch.commit() == 50 - len(some)


def test_a_slot_that_was_rolled_back_whole_and_taken_by_others_is_not_lost(topic, consumer):
    batch = consumer.poll()
    back = in_slots(batch, {2})
    assert batch.rollback(back) == len(back)
    [claim] = lose(topic, [2])
    assert sorted(claim.contents) == contents(back)
    batch.renew()
    assert batch.commit() == 50 - len(back)


def test_a_rollback_by_claim_id_is_not_a_loss(topic, consumer):
    batch = consumer.poll()
    message = next(iter(batch))
    assert rollback(topic, message.slot, message.claim_id, [message.content]).rolled_back == 1
    assert batch.commit() == 49


def test_messages_rolled_back_before_the_others_were_lost_are_not_counted_as_lost(topic, consumer):
    batch = consumer.poll()
    first, *rest = in_slots(batch, {2})
    batch.rollback([first], delay="1h")
    lose(topic, [2])
    assert batch.rollback(rest[:1]) == 0
    with pytest.raises(LeaseLost, match=rf" holds {len(rest)} of 50 messages"):
        batch.commit()


def test_a_message_of_an_earlier_batch_is_not_taken_for_one_of_this(topic, consumer):
    [old] = consumer.poll(limit=1)
    batch = consumer.poll()
    assert batch.rollback([old]) == 0
    lose(topic, topic.slots)
    with pytest.raises(LeaseLost, match=r" holds 50 of 50 messages"):
        batch.commit()


def test_an_empty_batch_loses_nothing(broker, topic, consumer):
    consumer.poll().commit()
    empty = consumer.poll()
    later = consumer.poll()
    for batch in (empty, later):
        assert (len(batch), batch.commit(), batch.renew()) == (0, 0, None)


def test_a_committed_batch_stays_committed_when_the_next_is_taken_or_the_consumer_closed(
    topic, consumer
):
    first = consumer.poll(limit=10)
    assert first.commit() == 10
    second = consumer.poll(limit=10)
    assert (first.commit(), first.renew()) == (0, None)
    assert second.commit() == 10
    consumer.close()
    assert (second.commit(), second.renew()) == (0, None)


def test_a_consumer_goes_on_after_a_loss(topic, consumer):
    batch = consumer.poll()
    lose(topic, [0])
    with pytest.raises(LeaseLost):
        batch.commit()
    topic.send(numbered(5, "n"), fixed_time=1000)
    assert consumer.poll().commit() == 5


def test_a_commit_whose_reply_was_lost_is_not_taken_for_a_loss(topic, consumer):
    """It ran, and runs again when the connection is back: it finds nothing."""
    batch = consumer.poll()
    topic.ask(claiming.commit, [0, 1, 2, 3], "a", run_of(topic, "a"), 1)
    assert batch.commit() == 50


def test_a_commit_that_reached_some_slots_tells_the_others_losses(topic, consumer):
    batch = consumer.poll()
    topic.ask(claiming.commit, [0], "a", run_of(topic, "a"), 1)
    lost = len(in_slots(batch, {1}))
    lose(topic, [1])
    with pytest.raises(
        LeaseLost, match=rf" holds {lost} of 50 messages.* {50 - lost} are committed"
    ):
        batch.commit()


def test_a_commit_that_failed_may_be_repeated(own_redis):
    own_redis.settings |= {"appendonly": "yes", "appendfsync": "always"}
    own_redis.kill()
    own_redis.start()
    broker = connect(own_redis.url, patience_s=0.1)
    broker.create("T", "FixedTime", 4)
    broker.queue("T").send(numbered(50), fixed_time=1000)
    batch = broker.consumer("T", "a").poll()
    own_redis.kill()
    with pytest.raises(ServerUnavailable):
        batch.commit()
    own_redis.start()
    assert batch.commit() == 50
    broker.close()


def test_a_closed_consumer_leaves_its_messages_in_the_store_at_once(broker, topic):
    with broker.consumer("T", "a") as consumer:
        consumer.poll()
    figures = topic.figures()
    assert (figures.store.count, figures.store.due, figures.prepare.count) == (50, 50, 0)
    assert [seen.held_slots for seen in overview_of(topic).consumers] == [0]


def test_a_start_leaves_in_the_store_what_an_earlier_one_held(broker, topic):
    broker.consumer("T", "a").poll()
    broker.consumer("T", "a")
    assert (topic.figures().store.count, topic.figures().prepare.count) == (50, 0)


def test_a_start_goes_on_behind_what_the_first_claimed_until_it_was_barred(
    broker, topic, monkeypatch
):
    """The first may claim until the second has barred it: the name of that claim is used up."""
    first = broker.consumer("T", "a")
    give_back = returning.give_back

    def after_a_claim(queues, *args):
        monkeypatch.undo()
        assert len(first.poll()) == 50
        return give_back(queues, *args)

    monkeypatch.setattr(returning, "give_back", after_a_claim)
    with broker.consumer("T", "a") as second:
        assert sum(batch.commit() for batch in second.batches(wait=False)) == 50


def test_giving_back_costs_a_retry_and_buries_what_has_none(broker):
    broker.create("Once", "FixedTime", 1, max_retries=0)
    queue = broker.queue("Once")
    queue.send(numbered(3), fixed_time=1000)
    with broker.consumer("Once", "a") as consumer:
        consumer.poll()
    assert (queue.figures().dead.count, queue.figures().messages) == (3, 3)


@pytest.mark.parametrize("step", ["poll", "close"])
@pytest.mark.parametrize("settle", ["commit", "mark_unread", "renew"])
def test_a_batch_whose_return_has_no_answer_is_lost(broker, topic, monkeypatch, step, settle):
    """Failed once: another consumer had the messages, and the commit succeeded all the same."""
    ask, lost = Queue.ask, []

    def without_answer(queue, make, *args, **kwargs):
        answer = ask(queue, make, *args, **kwargs)
        if make is returning.give_back and not lost:
            lost.append(make)
            raise ServerUnavailable("the answer is lost")
        return answer

    with broker.consumer("T", "a") as consumer, broker.consumer("T", "b") as other:
        batch = consumer.poll()
        monkeypatch.setattr(Queue, "ask", without_answer)
        with pytest.raises(ServerUnavailable):
            getattr(consumer, step)()
        assert len(other.poll()) == 50
        with pytest.raises(LeaseLost):
            getattr(batch, settle)()
