"""A consumer's next run."""

import pytest

from rmq_spark.client.consumer_runs import ConsumerBook
from rmq_spark.errors import CheckpointRefused
from rmq_spark.topics.definition import consumer_key


def test_each_run_is_later_than_the_last(slot):
    before = slot.now_ms()
    runs = [slot.queue.open_run("a", 0) for _ in range(3)]
    assert before <= runs[0] < runs[1] < runs[2]


def test_a_run_is_numbered_by_redis_clock(slot):
    before = slot.now_ms()
    assert before <= slot.queue.open_run("a", 7) <= slot.now_ms()


def test_a_run_that_redis_has_forgotten_gives_its_number_to_no_other(slot):
    known = slot.redis.dump(consumer_key("a", slot.broker.key_prefix))
    assert known is None
    forgotten = slot.queue.open_run("a", 0)
    slot.redis.delete(consumer_key("a", slot.broker.key_prefix))
    slot.wait_until(forgotten)
    assert slot.queue.open_run("a", 0) > forgotten


def test_runs_that_only_the_slots_know_count(slot):
    later = 10 * slot.now_ms()
    assert slot.queue.open_run("a", later) == later + 1
    assert slot.queue.open_run("a", 3) == later + 2


def test_consumers_count_for_themselves(slot):
    later = 10 * slot.now_ms()
    slot.queue.open_run("a", later)
    assert slot.queue.open_run("b", 0) < later


def test_a_consumer_of_another_topic_is_refused(new_slot):
    run = new_slot().queue.open_run("a", 0)
    other = new_slot()
    with pytest.raises(CheckpointRefused, match="reads the topic T0, not T1"):
        other.queue.open_run("a", 0)
    key = consumer_key("a", other.queue.key_prefix)
    assert other.redis.hgetall(key) == {b"run": b"%d" % run, b"topic": b"T0"}


def test_a_consumer_goes_on_with_more_topics_than_it_read_before(slot):
    slot.queue.open_run("a", 0)
    server, prefix = slot.queue.server, slot.queue.key_prefix
    book = ConsumerBook(server, "a", prefix)
    later = book.open("T0,T1", 0, earlier="T0")
    assert book.open("T0,T1", 0) > later
    with pytest.raises(CheckpointRefused, match="reads the topic T0,T1, not T0"):
        slot.queue.open_run("a", 0)


def test_opening_keeps_what_is_settled(slot):
    slot.queue.open_run("a", 0)
    slot.queue.settle("a", 12)
    slot.queue.open_run("a", 0)
    assert slot.queue.settled("a") == 12


def test_runs_beyond_what_a_double_prints_stay_exact(slot):
    assert slot.queue.open_run("a", 10**15) == 10**15 + 1
    assert slot.queue.open_run("a", 0) == 10**15 + 2
