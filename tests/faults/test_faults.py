"""A smaller round of `make faults`: the faults that say most and take least."""

import subprocess

import pytest

from .. import programs, servers
from ..processes import NEEDS_PROC, alive, family
from ..waiting import wait_until
from .injections import FAULTS
from .run_faults import Round, arguments, cells_of

SMALL = (("redis-kill", "keyed"), ("fallback-replica", "parquet"))
OTHERS = (("drop", "parquet"), ("worker-kill", "parquet"), ("fallback-rdb", "twice"))
ON_CLUSTER = (("master-kill", "keyed"),)
OTHERS_ON_IT = (("slot-moves", "parquet"),)


class BrokenRound(Round):
    """A round whose first cell cannot be run."""

    def _cell(self, lane, fault, sink):
        raise OSError("no space left")


def test_a_round_that_cannot_go_on_is_no_success(tmp_path):
    """A lane that ended by an error once left its cells out, and the rest had `0 failed`."""
    wanted = [(FAULTS[0], sink) for sink in FAULTS[0].sinks]
    with pytest.raises(OSError, match="no space left"):
        BrokenRound(tmp_path).run(wanted)


@pytest.mark.parametrize("text", [None, "", "<!-- faults: begin -->"])
def test_a_page_without_a_place_for_the_table_is_refused_before_the_first_cell(
    tmp_path, capsys, text
):
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    with pytest.raises(SystemExit):
        arguments(["--markdown", str(page)])
    assert f"--markdown={page}: needed is a file with <!-- faults" in capsys.readouterr().err


@pytest.mark.timeout(900)  # whole minutes on a machine that has much else to do
@NEEDS_PROC
@pytest.mark.parametrize(
    ("cells", "messages", "cluster"),
    [
        pytest.param(SMALL, 3000, False, marks=pytest.mark.long, id="one-server"),
        pytest.param(ON_CLUSTER, 1200, True, marks=pytest.mark.long, id="cluster"),
        pytest.param(OTHERS, 3000, False, marks=pytest.mark.rounds, id="others"),
        pytest.param(OTHERS_ON_IT, 1200, True, marks=pytest.mark.rounds, id="others-on-it"),
    ],
)
def test_what_real_queries_deliver_while_things_die_under_them(tmp_path, cells, messages, cluster):
    if not servers.executables():
        servers.do_without()
    named = {fault.name: fault for fault in FAULTS}
    small = Round(tmp_path, messages=messages, times=3, seed=7, cluster=cluster)
    verdicts = small.run([(named[name], sink) for name, sink in cells])
    assert [verdict.faults_found() for verdict in verdicts] == [[]] * len(cells)


@pytest.mark.long
@pytest.mark.timeout(900)
@NEEDS_PROC
def test_a_run_that_is_ended_in_a_cell_leaves_neither_a_process_nor_a_result(tmp_path):
    """It once went on waiting for minutes for what could not come any more."""
    if not servers.executables():
        servers.do_without()
    results = tmp_path / "results.jsonl"
    words = ("--only", "drop", "--results", results, "--keep", tmp_path / "kept")
    run = subprocess.Popen(
        programs.command("faults.run_faults", *words), env=programs.environment()
    )
    commits = tmp_path / "kept" / "drop-parquet" / "checkpoint-producer" / "commits"
    wait_until(lambda: any(commits.glob("[0-9]*")), "the cell to be under way", 600)
    others = family(run.pid)
    run.terminate()
    assert run.wait(60) == 1
    wait_until(lambda: not any(map(alive, others)), "all processes to end")
    assert not results.exists()


def test_faults_of_one_server_are_not_tried_on_a_cluster(capsys):
    chosen = arguments(["--cluster"])
    names = {fault.name for fault, _ in cells_of(chosen)}
    assert {"slot-moves", "driver-kill"} <= names
    assert not {"redis-kill", "fallback-rdb"} & names
    with pytest.raises(SystemExit):
        arguments(["--cluster", "--only", "redis-kill"])
    assert "none of these faults is tried on it with Cluster" in capsys.readouterr().err
