"""What a function of batches may return to tell which messages failed."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rmq_spark import Bury, Retry, Snooze
from rmq_spark.spark.listener.child import failures_of
from rmq_spark.topics.verdicts import Failure


@pytest.mark.parametrize(
    ("returned", "positions"),
    [
        (None, []),
        ([], []),
        (set(), []),
        ([2, 0, 2], [0, 2]),
        (range(3), [0, 1, 2]),
        ((n for n in [1]), [1]),
        (np.array([1]), [1]),
        (pd.Series([2, 1]), [1, 2]),
        (pa.array([0, 2]), [0, 2]),
        ([True, False, True], [0, 2]),
        (np.array([False, True, False]), [1]),
        (pd.Series([False, False, True]), [2]),
        (pa.array([True, True, True]), [0, 1, 2]),
        (pa.chunked_array([[False], [True, False]]), [1]),
    ],
)
def test_what_may_be_returned(returned, positions):
    failure = Failure("the function returned it as failed")
    assert failures_of(returned, 3) == ([(positions, failure)] if positions else [])


def test_positions_may_have_verdicts():
    said = {
        np.int64(2): Bury("no"),
        0: Retry("1m", "later"),
        1: Bury("no"),
        3: Snooze("5m"),
        4: ValueError("x"),
    }
    assert failures_of(said, 5) == [
        ([0], Failure("Retry: later", "retry", 60_000)),
        ([1, 2], Failure("Bury: no", "bury")),
        ([3], Failure("Snooze: ", "uncharged", 300_000)),
        ([4], Failure("ValueError: x")),
    ]


def for_ever():
    while True:
        yield 0


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (True, "a bool"),
        (1, "an? int"),
        ("12", "a str"),
        (b"\0", "a bytes"),
        ([0, "1"], "a str as a position"),
        ([0.0], "a float as a position"),
        ([None], "a NoneType as a position"),
        ([0, True, 2], "a bool as a position"),
        (pa.array([True, None, False]), "a bool as a position|a NoneType as a position"),
        (pd.DataFrame({"content": [1]}), "a str as a position"),
        ([3], "the position 3"),
        ([-1], "the position -1"),
        ([True, False], "a mask of 2 booleans"),
        ([True] * 4, "a mask of more booleans"),
        ([0, 0, 0, 0], "more positions"),
        (for_ever(), "more positions"),
        ({3: Bury()}, "the position 3"),
        ({False: Bury()}, "a bool as a position"),
        ({np.bool_(True): Bury()}, "a bool as a position"),
        ({"0": Bury()}, "a str as a position"),
    ],
)
def test_what_may_not_be_returned(returned, says):
    with pytest.raises((TypeError, ValueError), match=says) as refused:
        failures_of(returned, 3)
    accepted = (
        "None, positions 0 to 2, a mask of 3 booleans, or a dict of positions and exceptions."
    )
    assert f"Accepted: {accepted}" in str(refused.value)


@pytest.mark.parametrize("said", [None, "retry", True, Bury])
def test_a_verdict_is_an_exception(said):
    with pytest.raises(TypeError, match=r"The function returned a .* Accepted: an exception"):
        failures_of({0: said}, 3)
