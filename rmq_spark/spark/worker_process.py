"""What tasks do to the Python process that they run in."""

import gc


def spare_collections() -> None:
    """Keeps what is there when a task begins out of the garbage collection at its end.

    Spark collects garbage after every task. With pyarrow, numpy and pandas loaded, that looks at
    half a million objects and takes 0.1 s, more than many a task. No garbage is among them: the
    collection after the task before has just removed it.
    """
    gc.freeze()
