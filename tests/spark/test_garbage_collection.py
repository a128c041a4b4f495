"""What a task leaves to the garbage collection at its end."""

import gc
import weakref

import pytest

from .driving import contents


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_what_was_there_before_a_task_is_kept_out_of_its_collection(rmq):
    queue = rmq.due(3, slots=1)
    gc.unfreeze()
    with rmq.by_hand(queue) as run:
        _, rows = run.next(run.initial())
    assert sorted(contents(rows)) == ["m0", "m1", "m2"]
    assert gc.get_freeze_count() > 10_000


def test_garbage_that_a_task_makes_is_still_collected(rmq):
    queue = rmq.due(3, slots=1)
    with rmq.by_hand(queue) as run:
        run.next(run.initial())
        knot = []
        knot.append(knot)
        del knot
        assert gc.collect() > 0


def test_garbage_is_still_collected_however_many_tasks_follow_it(rmq):
    """Failed before: each task kept what it found out of the collections, garbage too."""
    queue = rmq.due(3, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, _ = run.next(start)

        class Noted:
            pass

        knot = Noted()
        knot.itself = knot
        lives = weakref.ref(knot)
        del knot
        run.batch(start, end)
        gc.collect()
        assert lives() is None
