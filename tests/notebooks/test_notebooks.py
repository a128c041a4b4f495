"""The notebooks run from top to bottom, and what they show is what they do."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from .. import quick_spark, servers
from .notebook_rules import METADATA, faults, same_outputs
from .run_notebooks import FOLDER, NAMES, executed, main, path_of, read


@pytest.fixture
def notebook():
    """One that has nothing wrong with it."""
    cell = new_code_cell("1", id="one", execution_count=1, outputs=[new_output("stream", text="1")])
    return new_notebook(cells=[cell], metadata=nbformat.from_dict(METADATA))


def test_all_notebooks_of_the_folder_are_run():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.timeout(900)  # on a machine that others use, too
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_in_an_empty_folder_and_shows_what_is_committed(name):
    if not servers.executables():
        servers.do_without()
    again, committed = executed(name, **quick_spark.variables()), read(name)
    assert faults(again) == []
    assert same_outputs(again) == same_outputs(committed)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_was_run_and_tells_nothing_of_a_machine(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert faults(notebook) == []


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_somewhere(name):
    texts = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)#]+)", "\n".join(texts))
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_a_good_notebook_has_no_faults(notebook):
    assert faults(notebook) == []


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (new_output("stream", name="stderr", text="WARN"), "errors or warnings"),
        (new_output("error", ename="KeyError", evalue="1", traceback=[]), "errors or warnings"),
        (new_output("stream", text="in /tmp/rmq-1/spark.log"), "of a machine"),
        (new_output("stream", text="redis://somewhere:6379/0"), "of a machine"),
        (new_output("display_data", {"text/plain": "'/home/ada/x'"}), "of a machine"),
        (new_output("stream", text="x\n" * 41), "41 lines of output"),
        (new_output("display_data", {"image/png": "x" * 60_000}), "a plot of 45000 bytes"),
    ],
)
def test_an_output_that_is_not_fit_to_be_kept_is_a_fault(notebook, output, fault):
    notebook.cells[0].outputs.append(output)
    (found,) = faults(notebook)
    assert fault in found


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"execution_count": 2}, "not run from top to bottom: [2]"),
        ({"execution_count": None}, "not run from top to bottom: [None]"),
        ({"id": "3f2a9c10"}, "no id of words"),
        ({"metadata": {"execution": {}}}, "has the metadata"),
    ],
)
def test_a_cell_of_another_run_or_tool_is_a_fault(notebook, changed, fault):
    notebook.cells[0].update(nbformat.from_dict(changed))
    (found,) = faults(notebook)
    assert fault in found


def test_a_notebook_with_faults_is_not_written(notebook, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.notebooks.run_notebooks.FOLDER", tmp_path)
    notebook.cells[0].source = "import sys\nprint('noise', file=sys.stderr)"
    nbformat.write(notebook, path_of("quickstart"))
    before = path_of("quickstart").read_bytes()
    with pytest.raises(SystemExit, match="quickstart one has errors or warnings"):
        main(["quickstart"])
    assert path_of("quickstart").read_bytes() == before
