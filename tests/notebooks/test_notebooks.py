"""The notebooks run from top to bottom, and what they show is what they do."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from .. import quick_spark, servers
from ..texts.notebooks import METADATA, same_outputs, unfit
from .run_notebooks import NAMES, executed, main, path_of, read


@pytest.mark.timeout(900)  # on a machine that others use, too
@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_in_an_empty_folder_and_shows_what_is_committed(name):
    if not servers.executables():
        servers.do_without()
    again, committed = executed(name, **quick_spark.variables()), read(name)
    assert [*unfit(name, again)] == []
    assert same_outputs(again) == same_outputs(committed)


def test_a_notebook_that_is_unfit_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.notebooks.run_notebooks.FOLDER", tmp_path)
    cell = new_code_cell("import sys\nprint('noise', file=sys.stderr)", id="one")
    notebook = new_notebook(cells=[cell], metadata=nbformat.from_dict(METADATA))
    nbformat.write(notebook, path_of("quickstart"))
    before = path_of("quickstart").read_bytes()
    with pytest.raises(SystemExit, match=r"quickstart\.ipynb: one has errors or warnings"):
        main(["quickstart"])
    assert path_of("quickstart").read_bytes() == before
