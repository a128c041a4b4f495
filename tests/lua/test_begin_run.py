"""A consumer's next run."""

import pytest

from rmq_spark.errors import CheckpointRefused
from rmq_spark.protocol import claiming
from rmq_spark.protocol.returning import FORGET_CONSUMERS_MS
from rmq_spark.topics.keys import consumer_key

from ..seeding import committed_up_to, note_committed, open_run


def test_each_run_is_later_than_the_last(slot):
    before = slot.now_ms()
    runs = [open_run(slot.queue, "a", 0) for _ in range(3)]
    assert before <= runs[0] < runs[1] < runs[2]


def test_a_run_is_numbered_by_redis_clock(slot):
    before = slot.now_ms()
    assert before <= open_run(slot.queue, "a", 7) <= slot.now_ms()


def test_a_run_that_redis_has_forgotten_gives_its_number_to_no_other(slot):
    known = slot.redis.dump(consumer_key("a", slot.broker.key_prefix))
    assert known is None
    forgotten = open_run(slot.queue, "a", 0)
    slot.redis.delete(consumer_key("a", slot.broker.key_prefix))
    slot.wait_past(forgotten)
    assert open_run(slot.queue, "a", 0) > forgotten


def test_runs_that_only_the_slots_know_count(slot):
    later = 10 * slot.now_ms()
    assert open_run(slot.queue, "a", later) == later + 1
    assert open_run(slot.queue, "a", 3) == later + 2


def test_consumers_count_for_themselves(slot):
    later = 10 * slot.now_ms()
    open_run(slot.queue, "a", later)
    assert open_run(slot.queue, "b", 0) < later


def test_a_consumer_of_another_topic_is_refused(new_slot):
    run = open_run(new_slot().queue, "a", 0)
    other = new_slot()
    with pytest.raises(CheckpointRefused, match="reads the topic T0, not T1"):
        open_run(other.queue, "a", 0)
    key = consumer_key("a", other.queue.key_prefix)
    assert other.redis.hgetall(key) == {b"run": b"%d" % run, b"topic": b"T0"}


def test_a_consumer_goes_on_with_more_topics_than_it_read_before(slot):
    open_run(slot.queue, "a", 0)
    server, key = slot.queue.server, consumer_key("a", slot.queue.key_prefix)
    later = server.ask(claiming.open_run(key, "T0,T1", 0, earlier="T0"))
    assert server.ask(claiming.open_run(key, "T0,T1", 0)) > later
    with pytest.raises(CheckpointRefused, match="reads the topic T0,T1, not T0"):
        open_run(slot.queue, "a", 0)


def test_opening_keeps_how_far_it_has_committed(slot):
    open_run(slot.queue, "a", 0)
    note_committed(slot.queue, "a", 12)
    open_run(slot.queue, "a", 0)
    assert committed_up_to(slot.queue, "a") == 12


def test_a_consumer_that_starts_no_other_run_is_forgotten(slot):
    """Seen: each name of a container that is gone kept a key for ever, also behind its topic."""
    with slot.broker.consumer(slot.queue.definition.name, "pod-1"):
        (key,) = slot.redis.keys(f"{consumer_key('*', slot.queue.key_prefix)}pod-1")
        assert 0 < slot.redis.pttl(key) <= FORGET_CONSUMERS_MS


def test_a_consumer_with_a_checkpoint_is_kept(slot):
    open_run(slot.queue, "a", 0)
    assert slot.redis.pttl(consumer_key("a", slot.queue.key_prefix)) == -1


def test_runs_beyond_what_a_double_prints_stay_exact(slot):
    assert open_run(slot.queue, "a", 10**15) == 10**15 + 1
    assert open_run(slot.queue, "a", 0) == 10**15 + 2
