"""A plain consumer on a Redis that falls back to an earlier state: its own batch, and no other."""

import pytest

from rmq_spark.client import connect
from rmq_spark.client.messages import Message
from rmq_spark.errors import LeaseLost


@pytest.fixture
def queue(own_redis):
    broker = connect(own_redis.url)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send([Message(f"a{n}", fixed_time=1000 + n) for n in range(5)])
    queue.send([Message(f"b{n}", fixed_time=2000 + n) for n in range(5)])
    yield queue
    broker.close()


@pytest.fixture
def clerk(own_redis, queue):
    broker = connect(own_redis.url)
    yield broker.consumer("T", "clerk", visibility_timeout="1h")
    broker.close()


def fall_back(redis):
    redis.kill()
    redis.start()


def contents(batch):
    return [message.content.decode() for message in batch]


@pytest.mark.parametrize("call", ["commit", "renew"])
def test_a_batch_that_redis_has_forgotten_is_lost(own_redis, queue, clerk, call):
    first = clerk.poll(5)
    queue.server.client.save()
    first.commit()
    second = clerk.poll(3)
    assert contents(second) == ["b0", "b1", "b2"]
    fall_back(own_redis)
    with pytest.raises(LeaseLost, match="3 of 3 messages"):
        getattr(second, call)()
    assert queue.figures().store.count == 5


def test_a_commit_removes_no_batch_that_came_back_unfinished(own_redis, queue, clerk):
    clerk.poll(5)  # the work fails
    queue.server.client.save()
    queue.send([Message("urgent", fixed_time=17)])
    second = clerk.poll(1)
    assert contents(second) == ["urgent"]
    fall_back(own_redis)
    with pytest.raises(LeaseLost, match="1 of 1 messages"):
        second.commit()
    assert queue.figures().prepare.count == 5


def test_a_batch_after_the_fall_back_is_committed_alone(own_redis, queue, clerk):
    clerk.poll(5)
    queue.server.client.save()
    fall_back(own_redis)
    later = clerk.poll(3)
    assert later.commit() == len(later)
    figures = queue.figures()
    assert figures.counters["committed"] == len(later)
    assert figures.store.count + figures.prepare.count == 10 - len(later)
