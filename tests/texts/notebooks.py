"""Rules of the notebooks: what one must be like to be committed with its outputs."""

import json
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

from .. import ROOT

FOLDER = ROOT / "notebooks"
# What Jupyter and a machine would add says nothing about the notebook.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# The output of such a cell is the same in every run.
SAME = "same"
CELL_METADATA = ({}, {"tags": [SAME]})
LINES_A_CELL = 40
BYTES_A_PLOT = 40 * 1024
BYTES_A_NOTEBOOK = 200_000
# Folders and addresses, wherever they are; and those of the machine that runs this.
PLACES = (
    *(r"(?<![\w.~-])/(tmp|home|root|Users|private|var|opt|usr|mnt|work)/", r"\b[A-Z]:\\"),
    *(r"\b(localhost|127\.0\.0\.1)\b", r"\b(file|redis|spark)://"),
)
# (A home may be "/", which says nothing.)
HERE = [
    rf"{re.escape(place)}\b"
    for place in (socket.gethostname(), str(Path.home()), sys.prefix, tempfile.gettempdir())
    if len(place) > 3
]
OF_A_MACHINE = re.compile("|".join((*PLACES, *HERE)))


def code_cells(notebook):
    """The cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def same_outputs(notebook):
    """The outputs that must be the same in every run, by the id of their cell."""
    tagged = [cell for cell in code_cells(notebook) if SAME in cell.metadata.get("tags", ())]
    return {cell.id: cell.outputs for cell in tagged}


def unfit(name, notebook) -> Iterator[str]:
    """What is wrong with a notebook and its outputs."""
    place = f"notebooks/{name}.ipynb"
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        yield f"{place}: is no notebook: {error.message}. Run: make notebooks"
        return
    counts = [cell.execution_count for cell in code_cells(notebook)]
    ids = [cell.id for cell in notebook.cells]
    size = len(json.dumps(notebook))
    found = [
        (counts != [*range(1, len(counts) + 1)], f"was not run from top to bottom: {counts}"),
        (notebook.metadata != METADATA, f"has the metadata {notebook.metadata}"),
        (len(set(ids)) < len(ids), "has two cells of one id"),
        (size > BYTES_A_NOTEBOOK, f"has {size} bytes, of {BYTES_A_NOTEBOOK}"),
    ]
    found += [fault for cell in notebook.cells for fault in _of_cell(cell)]
    yield from (f"{place}: {text}. Run: make notebooks" for is_wrong, text in found if is_wrong)


def ill_connected(name, notebook) -> Iterator[str]:
    """It starts a Redis of its own, which all of its cells use, and its links lead somewhere."""
    place = f"notebooks/{name}.ipynb"
    code = "\n".join(cell.source for cell in code_cells(notebook))
    for line in ("LocalRedis().start()", 'os.environ["RMQ_REDIS_URL"] = redis.url'):
        if line not in code:
            yield f"{place}: lacks {line}. Start a Redis of its own"
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)#]+)", "\n".join(texts))
    if not links:
        yield f"{place}: links to no page. Link to what explains it"
    for link in links:
        if not (FOLDER / link).exists():
            yield f"{place}: {link} leads to no file. Name one that is there"


def _of_cell(cell):
    name = cell.id
    yield not re.fullmatch("[a-z]+(-[a-z]+)*", name), f"{name} is no id of words"
    yield cell.metadata not in CELL_METADATA, f"{name} has the metadata {cell.metadata}"
    outputs = cell.get("outputs", [])
    for output in outputs:
        is_noise = output.output_type == "error" or output.get("name") == "stderr"
        yield is_noise, f"{name} has errors or warnings"
        plot = len(output.get("data", {}).get("image/png", "")) * 3 // 4
        yield plot > BYTES_A_PLOT, f"{name} has a plot of {plot} bytes"
    texts = [text for output in outputs for text in _texts(output)]
    lines = sum(text.count("\n") for text in texts)
    yield lines > LINES_A_CELL, f"{name} has {lines} lines of output"
    told = [match[0] for text in texts for match in OF_A_MACHINE.finditer(text)]
    yield bool(told), f"{name} has the name of a place: {told}"


def _texts(output):
    if output.output_type == "stream":
        return [output.text]
    data = output.get("data", {})
    return [str(data[kind]) for kind in data if kind != "image/png"]
