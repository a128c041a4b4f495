"""When a waiting query asks Redis again: by a clock of the test's own."""

from rmq_spark.protocol.claims import SlotDue
from rmq_spark.spark.source import waits
from rmq_spark.spark.source.waits import Watch
from rmq_spark.topics.keys import Keys


class Clock:
    now = 1000.0

    def __init__(self):
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now += seconds


class Bell:
    """Wake-ups that a test makes: the times at which messages fall due, by when they come."""

    def __init__(self, clock, hears_all):
        self.hears_all = hears_all
        self.rings = {}
        self._clock = clock

    def wait(self, timeout_s):
        now = self._clock.now
        coming = [at for at in self.rings if now <= at < now + timeout_s]
        self._clock.sleep(min(coming, default=now + timeout_s) - now)

    def first(self):
        heard = [at for at in self.rings if at <= self._clock.now]
        return min((self.rings.pop(at) for at in heard), default=None)


def watch(poll_interval_s=0.1, hears_all=False):
    clock = Clock()
    return Watch(poll_interval_s, Bell(clock, hears_all), clock), clock


def woken_watch(poll_interval_s=0.1):
    """One that Redis wakes, and that has found nothing in one slot."""
    waiting, clock = watch(poll_interval_s, hears_all=True)
    waiting.found_nothing([SlotDue(0, 0, 0)])
    return waiting, clock, waiting.bell


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


# -- with wake-ups


def sleep_until_it_may_ask(waiting, clock):
    """Ask as Spark does, every 10 ms; return how long that took."""
    began = clock.now
    while waiting.sleep_if_early():
        clock.now += 0.01
    return clock.now - began


def test_who_is_woken_looks_into_the_stores_once_a_second():
    waiting, clock, _ = woken_watch()
    assert 1.0 <= sleep_until_it_may_ask(waiting, clock) < 1.1
    assert not waiting.knows_too_little()
    waiting.rest()
    assert 1.0 <= sleep_until_it_may_ask(waiting, clock) < 1.1


def test_who_is_woken_asks_all_slots_every_ten_seconds_or_sixteen_a_second():
    for slots, seconds in ((16, 10), (1024, 64)):
        waiting, clock = watch(hears_all=True)
        waiting.found_nothing([SlotDue(slot, 0, 0) for slot in range(slots)])
        clock.now += seconds - 0.1
        assert not waiting.knows_too_little()
        clock.now += 0.2
        assert waiting.knows_too_little()


def test_a_wake_up_ends_the_rest_at_once():
    waiting, clock, bell = woken_watch()
    bell.rings[clock.now + 0.35] = 0.0
    assert round(sleep_until_it_may_ask(waiting, clock), 6) == 0.35
    assert waiting.knows_too_little()


def test_a_wake_up_for_later_ends_the_rest_then():
    waiting, clock, bell = woken_watch()
    due = clock.now + 0.72
    bell.rings[clock.now + 0.35] = due
    bell.rings[clock.now + 0.45] = due + 5
    sleep_until_it_may_ask(waiting, clock)
    assert round(clock.now, 6) == round(due, 6)
    assert waiting.knows_too_little()
    waiting.found_nothing([SlotDue(0, 0, 0)])
    assert not waiting.knows_too_little()


def test_a_wake_up_ends_the_rest_of_a_long_poll_interval_too():
    waiting, clock, bell = woken_watch(poll_interval_s=3600)
    bell.rings[clock.now + 0.35] = 0.0
    assert round(sleep_until_it_may_ask(waiting, clock), 6) == 0.35


def test_what_is_known_to_fall_due_ends_the_rest():
    waiting, clock = watch(hears_all=True)
    waiting.found_nothing([SlotDue(0, 0, 0, 300), SlotDue(1, 0, 0, 250)])
    assert round(sleep_until_it_may_ask(waiting, clock), 6) == 0.25
    assert waiting.knows_too_little()


def test_no_wake_up_ends_the_rest_of_a_query_whose_batches_nobody_reads():
    waiting, clock, bell = woken_watch()
    waiting.pause_asking(doublings=3)
    bell.rings[clock.now + 0.35] = 0.0
    assert sleep_until_it_may_ask(waiting, clock) > 0.7


def test_where_wake_ups_are_missed_it_polls_as_without_them():
    waiting, clock, _ = woken_watch()
    for _ in range(3):
        waiting.note_missed()
    waiting.found_nothing([SlotDue(0, 0, 0)])
    assert sleep_until_it_may_ask(waiting, clock) < 0.2
    clock.now += 1
    assert waiting.knows_too_little()


def test_a_wake_up_proves_that_they_come():
    waiting, clock, bell = woken_watch()
    waiting.note_missed()
    waiting.note_missed()
    bell.rings[clock.now] = 0.0
    assert not waiting.sleep_if_early()
    waiting.note_missed()
    waiting.found_nothing([SlotDue(0, 0, 0)])
    assert sleep_until_it_may_ask(waiting, clock) >= 1.0


def test_an_idle_query_names_no_store_again_while_its_topics_stay(rmq, monkeypatch):
    """Failed before: with 65 536 slots, this took up to 127 ms of each second."""
    named, store = [], Keys.store
    monkeypatch.setattr(Keys, "store", lambda keys, slot: named.append(slot) or store(keys, slot))
    topics = [rmq.queue(slots=2) for _ in range(2)]
    bell = waits.Bell(rmq.broker.server)
    try:
        for queues in (topics[:1], topics[:1], topics, topics[::-1]):
            bell.listen(queues)
        assert named == [0, 1] * 3
        bell.listen(topics[1:])
        assert len(named) == 8
    finally:
        bell.close()
