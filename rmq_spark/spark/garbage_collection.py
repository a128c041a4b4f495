"""Garbage collection in the Python workers that run tasks."""

import gc


def freeze_live_objects() -> None:
    """Exempt all objects that exist when a task begins from garbage collection.

    Spark collects garbage after every task. With pyarrow, numpy and pandas loaded, a collection
    visits half a million objects and takes 0.1 s, longer than many tasks. None of these objects is
    garbage: the collection after the previous task has just removed it.
    """
    gc.freeze()
