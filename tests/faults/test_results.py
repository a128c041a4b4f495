"""The file of results: it adds up over runs, outlives a kill, and says which cells are missing."""

from collections import Counter
from pathlib import Path

import pytest

from .injections import FAULTS
from .results import HEADINGS, ONE, Result, Results, as_page, summary, totals
from .run_faults import arguments, main, missing, write_markdown
from .verdict import Verdict

KILL = FAULTS[0]


def result(sink="parquet", seed=1, keyed=False, fault=KILL, times=5, lost=0):
    verdict = Verdict(fault.text, sink, fault.lease, fault.promise, least=times)
    verdict.injected = Counter(read=2, write=1, commit=times - 3)
    verdict.sent, verdict.delivered, verdict.lost, verdict.redelivered = 50, 50, lost, 2
    return Result("2026-11-25 01:00", "abc1234", "2 cores", ONE, keyed, seed, 1000, times, verdict)


def given(file, *more):
    words = ["--only", KILL.name, "--messages", "1000", "--results", str(file), *more]
    return arguments(words)


def test_results_of_several_runs_come_back_as_they_were(tmp_path):
    file = tmp_path / "results.jsonl"
    assert Results(file).read() == []
    for each in (result(), result("keyed", keyed=True)):
        Results(file).add(each)
    assert Results(file).read() == [result(), result("keyed", keyed=True)]


@pytest.mark.parametrize("left", [1, 40, -1])
def test_a_line_that_a_kill_cut_off_is_missing_and_harms_no_other(tmp_path, left):
    file = tmp_path / "results.jsonl"
    Results(file).add(result())
    whole = file.read_text()
    file.write_text(whole + whole[:left])
    Results(file).add(result("keyed"))
    found = Results(file).read()
    # What lacks nothing but the end of its line is whole.
    assert found == [result()] * (2 if left == -1 else 1) + [result("keyed")]


def test_a_resumed_run_begins_what_has_not_passed(tmp_path):
    file = tmp_path / "results.jsonl"
    both = [(KILL, "parquet"), (KILL, "keyed")]
    assert missing(given(file, "--resume")) == both
    Results(file).add(result("parquet", lost=1))
    assert missing(given(file, "--resume")) == both
    Results(file).add(result("parquet"))
    assert missing(given(file, "--resume")) == both[1:]
    for other in (["--seed", "2"], ["--keyed"], ["--times", "4"], []):
        resumed = ["--resume"] if other else []
        assert missing(given(file, *resumed, *other)) == both


def test_a_run_that_lacks_nothing_starts_nothing(tmp_path, monkeypatch, capsys):
    file = tmp_path / "results.jsonl"
    for sink in KILL.sinks:
        Results(file).add(result(sink))
    words = ["faults", "--only", KILL.name, "--messages", "1000", "--results", str(file)]
    monkeypatch.setattr("sys.argv", [*words, "--resume"])
    assert main() == 0
    assert "All of these cells have passed" in capsys.readouterr().out


def test_injections_are_summed_by_fault_and_by_what_they_hit():
    found = [result(), result("keyed", 2), result(keyed=True), result(fault=FAULTS[4], times=7)]
    head, *rows = summary(found, [fault.text for fault in FAULTS])
    assert head == list(HEADINGS)
    table = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert list(table) == [KILL.text, FAULTS[4].text, "all"]
    assert (table[KILL.text][ONE], table[KILL.text][f"{ONE}, keys"]) == ("10", "5")
    assert table["all"]["read/write/commit"] == "8/4/10"
    assert (table["all"]["delivered"], table["all"]["failed"]) == ("200", "0")
    assert totals(found)[0] == "22 injections of 2 kinds in 4 cells."


def test_a_cell_that_failed_stays_in_the_sum_and_is_named():
    found = [result(lost=1), result()]
    assert summary(found, [KILL.text])[-1][-1] == "1"
    (line,) = [line for line in totals(found) if "Failed" in line]
    assert KILL.text in line
    assert "1 lost" in line


def test_the_page_gets_the_table_between_its_marks(tmp_path):
    page, file = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text("before\n<!-- faults: begin -->\nold\n<!-- faults: end -->\nafter\n")
    Results(file).add(result())
    write_markdown(given(file, "--markdown", str(page)))
    text = page.read_text()
    assert as_page([result()], [KILL.text]) in text
    assert "old" not in text
    assert (text.startswith("before\n<!--"), text.endswith("-->\nafter\n")) == (True, True)


@pytest.mark.parametrize("option", ["--resume", "--summary", "--markdown"])
def test_what_needs_a_file_of_results_says_so(option, capsys, tmp_path):
    page = Path(tmp_path / "page.md")
    page.write_text("<!-- faults: begin --><!-- faults: end -->")
    with pytest.raises(SystemExit):
        arguments([option, *[str(page)] * (option == "--markdown")])
    assert "needed is the file of --results" in capsys.readouterr().err
