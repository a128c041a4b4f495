"""When a waiting query asks Redis again: by a clock of the test's own."""

from rmq_spark.protocol.claims import SlotDue
from rmq_spark.spark.source.polling import Watch


class Clock:
    now = 1000.0

    def __init__(self):
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now += seconds


def watch(poll_interval_s=0.1):
    clock = Clock()
    return Watch(poll_interval_s, clock, clock.sleep), clock


def test_at_first_everything_is_asked_at_once():
    new, _ = watch()
    assert not new.sleep_if_early()
    assert new.knows_too_little()


def test_after_nothing_was_found_redis_is_left_alone_for_a_poll_interval():
    waiting, clock = watch()
    waiting.found_nothing([SlotDue(0, 0, 0)])
    clock.now += 0.03
    assert not waiting.sleep_if_early()
    assert clock.slept == [0.07]
    assert not waiting.knows_too_little()


def test_who_asks_later_is_not_kept_waiting():
    waiting, clock = watch()
    waiting.found_nothing([SlotDue(0, 0, 0)])
    clock.now += 0.11
    assert not waiting.sleep_if_early()
    assert clock.slept == []


def test_batches_of_other_sources_are_not_kept_waiting():
    waiting, clock = watch(poll_interval_s=3600)
    waiting.found_nothing([SlotDue(0, 0, 0)])
    for _ in range(3):
        clock.now += 0.06
        assert waiting.sleep_if_early()
    assert clock.slept == []
    clock.now += 0.01
    assert waiting.sleep_if_early()
    assert clock.slept == [0.1]


def test_nobody_waits_longer_than_a_tenth_of_a_second():
    waiting, clock = watch(poll_interval_s=3600)
    waiting.found_nothing([SlotDue(0, 0, 0)])
    assert waiting.sleep_if_early()
    assert waiting.sleep_if_early()
    assert clock.slept == [0.1, 0.1]


def test_all_slots_are_asked_again_after_a_second():
    waiting, clock = watch()
    waiting.found_nothing([SlotDue(slot, 0, 0) for slot in range(64)])
    clock.now += 0.9
    assert not waiting.knows_too_little()
    clock.now += 0.2
    assert waiting.knows_too_little()


def test_many_slots_are_asked_less_often():
    waiting, clock = watch()
    waiting.found_nothing([SlotDue(slot, 0, 0) for slot in range(1024)])
    clock.now += 7.9
    assert not waiting.knows_too_little()
    clock.now += 0.2
    assert waiting.knows_too_little()


def test_all_slots_are_asked_when_the_first_wait_ends():
    waiting, clock = watch()
    waiting.found_nothing([SlotDue(0, 0, 0), SlotDue(1, 0, 0, 300), SlotDue(2, 0, 0, 250)])
    clock.now += 0.24
    assert not waiting.knows_too_little()
    clock.now += 0.02
    assert waiting.knows_too_little()


def test_after_a_batch_everything_is_asked():
    waiting, _ = watch()
    waiting.found_nothing([])
    waiting.found_something()
    assert waiting.knows_too_little()


def test_what_a_batch_left_is_not_waited_for():
    waiting, clock = watch(poll_interval_s=60)
    waiting.found_nothing([SlotDue(0, 0, 0)])
    clock.now += 60
    waiting.pause_asking()  # before the stores are looked into
    waiting.found_something()
    assert not waiting.sleep_if_early()
    assert clock.slept == []
