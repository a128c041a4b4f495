"""Rounds of changes add up in a file, and services come and go in every way."""

from collections import Counter
from types import SimpleNamespace

import pytest

from . import changes, ownership_demo
from .round import Step
from .streams import Verdict

RIGHT = Verdict(10, 10, 1, 0, 0, 0, 0, 0)


class Played:
    """A round that notes what is asked of it."""

    def __init__(self):
        self.changes = 0
        self.asked = []

    def work(self, what, messages):
        self.asked.append(what)


@pytest.fixture
def ways(monkeypatch):
    """Ways that take no time; each is two changes."""

    def way_of(name):
        def way(round_, service):
            round_.changes += 2
            round_.asked.append(name)

        return way

    monkeypatch.setattr(changes, "WAYS", {name: way_of(name) for name in changes.WAYS})
    monkeypatch.setattr(changes, "LEADER", 0)
    monkeypatch.setattr(changes, "all_join", lambda round_: None)


def test_every_way_comes_as_often_as_any_other(ways):
    round_ = Played()
    done = changes.play(round_, 16, seed=1)
    assert done == dict.fromkeys(changes.WAYS, 2)
    assert round_.asked[-1] == "all three work"
    other = Played()
    changes.play(other, 16, seed=2)
    assert other.asked != round_.asked


def test_rounds_of_a_file_are_summed(tmp_path, capsys, monkeypatch):
    file = tmp_path / "rounds.jsonl"
    for seed, seconds in ((1, 4.5), (2, 9.0)):
        round_ = SimpleNamespace(seed=seed, changes=20, steps=[Step("joined", seconds, 3)])
        changes.keep(file, round_, Counter(killed=3, left=1), RIGHT)
    first, second, third = changes.summary(file)
    assert first == "40 changes in 2 rounds: killed 6, left 2."
    assert second.startswith("sent 20, processed 20, repeated 2, lost 0")
    assert "longest step took 9.0 s" in third
    assert third.endswith("Seeds: 1, 2.")
    monkeypatch.setattr("sys.argv", ["demo", "--summary", "--results", str(file)])
    assert ownership_demo.main() == 0
    assert first in capsys.readouterr().out


def test_results_without_a_round_that_adds_to_them_are_refused(capsys, monkeypatch):
    for words in (["--results", "x"], ["--summary"], ["--services", "--results", "x"]):
        monkeypatch.setattr("sys.argv", ["demo", *words])
        with pytest.raises(SystemExit):
            ownership_demo.main()
    assert "--results goes with --changes or --summary" in capsys.readouterr().err
