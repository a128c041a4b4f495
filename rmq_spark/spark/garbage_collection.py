"""Garbage collection in the Python workers that run tasks."""

import gc


def freeze_live_objects() -> None:
    """Exempt all existing objects from garbage collection. Call it when a task begins.

    Spark collects garbage after every task. With pyarrow, numpy and pandas loaded, a collection
    visits half a million objects and takes 0.1 s, longer than many tasks. The
    objects are not garbage, which the collection after the previous task has just removed.
    """
    gc.freeze()
