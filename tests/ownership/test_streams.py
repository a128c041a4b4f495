"""The verdict on serial streams, on notes that are right and on each that is not."""

import json
from itertools import islice

import pytest

from .streams import Work, contents, read_works, verdict

SENT = [(1, json.dumps({"number": f"{number:06d}"})) for number in (1, 2, 3)]


def works(*rows):
    """stream, number, start, end, consumer, batch."""
    return [Work(s, n, start, end, "place", c, b) for s, n, start, end, c, b in rows]


RIGHT = works((1, 1, 0, 1, "a", 1), (1, 2, 1, 2, "a", 1), (1, 3, 5, 6, "b", 9))


def test_one_after_the_other_is_right():
    found = verdict(SENT, RIGHT)
    assert found.holds
    assert (found.sent, found.processed, found.repeated) == (3, 3, 0)


def test_a_batch_that_is_worked_on_again_after_a_kill_is_right():
    again = works((1, 1, 0, 1, "a", 1), (1, 1, 2, 3, "a", 1), (1, 2, 3, 4, "a", 1))
    found = verdict(SENT[:2], again)
    assert found.holds
    assert found.repeated == 1


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (RIGHT[:2], {"lost": 1}),
        ([*RIGHT, *works((2, 1, 9, 10, "a", 2))], {"unexpected": 1}),
        ([*RIGHT[:2], *works((1, 3, 1.5, 3, "b", 9))], {"overlaps": 1}),
        (
            works((1, 1, 0, 9, "a", 1), (1, 2, 1, 2, "b", 1), (1, 3, 3, 4, "b", 1)),
            {"overlaps": 2},
        ),
        (
            works((1, 1, 0, 1, "a", 1), (1, 2, 1, 2, "b", 1), (1, 3, 2, 3, "a", 1)),
            {"mixed": 1},
        ),
        (
            works((1, 3, 0, 1, "a", 1), (1, 1, 1, 2, "a", 1), (1, 2, 2, 3, "a", 1)),
            {"disordered": 2},
        ),
    ],
)
def test_what_is_wrong_is_counted(rows, wrong):
    found = verdict(SENT, rows)
    assert not found.holds
    counts = {
        name: getattr(found, name)
        for name in ("lost", "unexpected", "overlaps", "mixed", "disordered")
    }
    assert {name: count for name, count in counts.items() if count} == wrong


def test_a_line_that_was_cut_off_is_no_work(tmp_path):
    line = json.dumps(vars(RIGHT[0])) + "\n"
    (tmp_path / "a.jsonl").write_text(line + line[:20])
    assert read_works(tmp_path) == RIGHT[:1]


def test_the_same_seed_makes_the_same_messages_numbered_within_each_stream():
    made, same, other = (list(islice(contents(seed), 500)) for seed in (3, 3, 4))
    assert made == same != other
    numbers = [
        int(json.loads(content)["number"]) for stream, content in made if stream == made[0][0]
    ]
    assert numbers == list(range(1, len(numbers) + 1))
