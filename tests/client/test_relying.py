"""A consumer that takes batch after batch looks into the slots only now and then."""

import pytest

from rmq_spark.client.receiving import consumer as module

TEXTS = [f"message {number}".encode() for number in range(640)]


@pytest.fixture(autouse=True)
def relying(monkeypatch):
    monkeypatch.setattr(module, "RELY_S", 1000.0)


@pytest.fixture
def queue(broker):
    broker.create("T", "FixedTime", 64)
    queue = broker.queue("T")
    queue.send(TEXTS, fixed_time=1)
    return queue


def test_it_takes_many_batches_after_one_look(broker, queue, monkeypatch):
    looked_into, look = [], module.returning.look

    def counted(queues, slots, *args, **options):
        looked_into.extend(slots)
        return look(queues, slots, *args, **options)

    monkeypatch.setattr(module.returning, "look", counted)
    got = []
    with broker.consumer("T", "a") as consumer:
        for _ in range(64):
            batch = consumer.poll(10)
            got += [message.content for message in batch]
            batch.commit()
    assert sorted(got) == sorted(TEXTS)
    assert len(looked_into) == 64


def test_what_others_have_taken_ends_no_loop(broker, queue):
    got = []
    with broker.consumer("T", "a") as one, broker.consumer("T", "b") as other:
        for batch in one.batches(1, wait=False):
            got += [message.content for message in batch]
            batch.commit()
            taken = other.poll(20)  # of other slots, on which the first one relies
            got += [message.content for message in taken]
            taken.commit()
    assert sorted(got) == sorted(TEXTS)


def test_a_pause_is_heeded(broker, queue):
    with broker.consumer("T", "a") as consumer:
        assert len(consumer.poll(10)) == 10
        broker.pause("T")
        assert len(consumer.poll(10)) == 0
        broker.resume("T")
        assert len(consumer.poll(10)) == 10


def test_what_comes_meanwhile_is_not_left_out(broker, queue):
    """More than is left is wanted, so it looks again."""
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll(600)
        batch.commit()
        queue.send([b"late"], fixed_time=1)
        rest = consumer.poll(600)
        assert len(rest) == 41
        rest.commit()
