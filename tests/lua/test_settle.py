"""How far a consumer is known to have settled, beside its run."""


def test_the_highest_batch_is_kept(slot):
    assert slot.queue.settled("a") == 0
    for seq, settled in ((3, 3), (7, 7), (5, 7)):
        slot.queue.settle("a", seq)
        assert slot.queue.settled("a") == settled


def test_consumers_settle_for_themselves(slot):
    slot.queue.settle("a", 3)
    assert slot.queue.settled("b") == 0


def test_settling_keeps_the_run(slot):
    later = 10 * slot.now_ms()
    slot.queue.open_run("a", later)
    slot.queue.settle("a", 3)
    assert slot.queue.open_run("a", 0) == later + 2


def test_batches_beyond_what_a_double_prints_stay_exact(slot):
    slot.queue.settle("a", 10**15 + 1)
    assert slot.queue.settled("a") == 10**15 + 1
