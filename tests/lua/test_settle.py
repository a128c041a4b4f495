"""How far a consumer is known to have settled, beside its run."""

from ..seeding import open_run, settle, settled


def test_the_highest_batch_is_kept(slot):
    assert settled(slot.queue, "a") == 0
    for seq, highest in ((3, 3), (7, 7), (5, 7)):
        settle(slot.queue, "a", seq)
        assert settled(slot.queue, "a") == highest


def test_consumers_settle_for_themselves(slot):
    settle(slot.queue, "a", 3)
    assert settled(slot.queue, "b") == 0


def test_settling_keeps_the_run(slot):
    later = 10 * slot.now_ms()
    open_run(slot.queue, "a", later)
    settle(slot.queue, "a", 3)
    assert open_run(slot.queue, "a", 0) == later + 2


def test_batches_beyond_what_a_double_prints_stay_exact(slot):
    settle(slot.queue, "a", 10**15 + 1)
    assert settled(slot.queue, "a") == 10**15 + 1
