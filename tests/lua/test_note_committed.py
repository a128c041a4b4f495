"""How far a consumer is noted as committed, beside its run."""

from ..seeding import committed_up_to, note_committed, open_run


def test_the_highest_batch_is_kept(slot):
    assert committed_up_to(slot.queue, "a") == 0
    for seq, highest in ((3, 3), (7, 7), (5, 7)):
        note_committed(slot.queue, "a", seq)
        assert committed_up_to(slot.queue, "a") == highest


def test_each_consumer_has_a_note_of_its_own(slot):
    note_committed(slot.queue, "a", 3)
    assert committed_up_to(slot.queue, "b") == 0


def test_the_note_keeps_the_run(slot):
    later = 10 * slot.now_ms()
    open_run(slot.queue, "a", later)
    note_committed(slot.queue, "a", 3)
    assert open_run(slot.queue, "a", 0) == later + 2


def test_batches_beyond_what_a_double_prints_stay_exact(slot):
    note_committed(slot.queue, "a", 10**15 + 1)
    assert committed_up_to(slot.queue, "a") == 10**15 + 1
