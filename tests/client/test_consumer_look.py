"""A consumer that only looks, and one whose name is used once."""

import pytest

from rmq_spark.errors import ConsumerMisused, LeaseLost
from rmq_spark.protocol.pages import QueueKind

from ..seeding import numbered
from ..waiting import wait_until


@pytest.fixture(params=["FixedTime", "Priority"])
def topic(broker, request):
    broker.create("T", request.param, 2, max_retries=2, retry_backoff="1h")
    queue = broker.queue("T")
    values = {"FixedTime": {"fixed_time": 1000}, "Priority": {"priority": 70}}
    queue.send(numbered(10), **values[request.param])
    return queue


def stored(queue):
    pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
    return {entry for page in pages for entry in zip(page.contents, page.scores, strict=True)}


def test_a_look_costs_no_retry_and_no_place(broker, topic):
    before = stored(topic)
    for _ in range(20):  # deliveries that count would bury everything
        with broker.consumer("T", "looker") as consumer:
            batch = consumer.poll(4)
            batch.mark_unread()
            assert {(message.delivery_count, message.retries_left) for message in batch} == {(1, 2)}
    assert stored(topic) == before
    assert topic.figures().dead.count == topic.figures().retry.count == 0


def test_a_look_that_is_killed_costs_nothing_either(broker, topic):
    before = stored(topic)
    broker.consumer("T", "looker", visibility_timeout="1ms").poll().mark_unread()
    wait_until(lambda: (topic.expire(), topic.figures().prepare.count == 0)[1], "the lease to end")
    assert stored(topic) == before


def test_what_is_only_looked_at_is_not_committed(broker, topic):
    with broker.consumer("T", "looker") as consumer:
        batch = consumer.poll()
        batch.mark_unread()
        with pytest.raises(ConsumerMisused, match="marked unread: it can only be given back"):
            batch.commit()
        assert topic.figures().prepare.count == 10  # it is held until it is given back
    assert topic.figures().store.count == 10


def test_what_is_only_looked_at_is_not_rolled_back(broker, topic):
    """Seen: the rollback did nothing, and its delay was lost."""
    with broker.consumer("T", "looker") as consumer:
        batch = consumer.poll()
        batch.mark_unread()
        with pytest.raises(ConsumerMisused, match="marked unread: it can only be given back"):
            batch.rollback(delay="1h")
    assert topic.figures().store.due == 10


def test_the_next_batch_after_a_look_warns_of_no_retry(broker, topic, caplog):
    with broker.consumer("T", "looker") as consumer:
        consumer.poll().mark_unread()
        assert {message.delivery_count for message in consumer.poll()} == {1}
        assert "at the cost of a retry" not in caplog.text
        consumer.poll()
        assert "at the cost of a retry, unless a commit that was interrupted has" in caplog.text


def test_a_batch_that_is_done_is_left_alone_and_one_given_back_is_lost(broker, topic):
    with broker.consumer("T", "looker") as consumer:
        done = consumer.poll(3)
        done.commit()
        done.mark_unread()
        gone = consumer.poll(3)
        consumer.poll(3)
        with pytest.raises(LeaseLost):
            gone.mark_unread()


def books(queue):
    """What Redis keeps of consumers."""
    client, prefix = queue.server.client, queue.key_prefix
    headers = [client.hkeys(queue.keys.consumers(slot)) for slot in queue.slots]
    return {name for names in headers for name in names} | set(client.keys(f"{prefix}consumer:*"))


def test_a_name_that_is_forgotten_leaves_nothing(broker, topic):
    with broker.consumer("T", "stays") as other:
        other.poll(1)
        before = books(topic)
        consumer = broker.consumer("T", "once")
        consumer.poll(3)
        consumer.forget()
        assert len(before) == 2
        assert books(topic) == before
    assert topic.figures().messages == 10
    with pytest.raises(ConsumerMisused, match="is closed"):
        consumer.poll()


def test_a_name_is_forgotten_where_the_topic_is_gone(broker, topic):
    consumer = broker.consumer("T", "once")
    broker.delete("T")
    consumer.forget()
    assert books(topic) == set()
