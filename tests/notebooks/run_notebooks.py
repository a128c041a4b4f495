"""Runs the notebooks from top to bottom and keeps their outputs: make notebooks."""

import argparse
import os
import sys
import time
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import matplotlib.font_manager  # noqa: F401 - tells that it looks for fonts here, in no cell
import nbformat
from ipykernel.kernelspec import make_ipkernel_cmd
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from .. import kafka_broker
from ..ports import delta_spark
from ..texts.notebooks import FOLDER, METADATA, unfit

NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
CELL_TIMEOUT_S = 300


class ThisPython(KernelSpecManager):
    """Knows one kernel: the Python that runs this, whatever is installed for Jupyter elsewhere."""

    def get_kernel_spec(self, kernel_name):
        """The same for every name."""
        return KernelSpec(argv=make_ipkernel_cmd(), display_name=kernel_name, language="python")


def path_of(name):
    """Where a notebook lies."""
    return FOLDER / f"{name}.ipynb"


def read(name):
    """A notebook as it is committed."""
    return nbformat.read(path_of(name), as_version=4)


def execute(notebook, folder, home, variables):
    """Executes a notebook in a folder, in place. Raises nbclient's CellExecutionError.

    home: a folder for what IPython and Jupyter keep. variables: of its environment.
    """
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(
            kernel_spec_manager=ThisPython(), connection_file=f"{home}/kernel.json", transport="ipc"
        ),
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    )
    environment = {**os.environ, "IPYTHONDIR": home, "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    environment.pop("RMQ_REDIS_URL", None)
    # nbclient ends a kernel of somebody else's making only if told.
    client.execute(env=environment, cleanup_kc=True)
    notebook.metadata = nbformat.from_dict(METADATA)


@contextmanager
def needs(name):
    """Start what a notebook expects beside an installed rmq-spark. Yields its variables."""
    if name != "kafka_to_delta":
        yield {}
        return
    connectors = f"{kafka_broker.connector()},{delta_spark.connector()}"
    with kafka_broker.KafkaBroker() as broker:
        yield {
            "KAFKA": broker.address,
            "PYSPARK_SUBMIT_ARGS": f"--jars {connectors} pyspark-shell",
            **delta_spark.variables(),
        }


def executed(name, **variables):
    """A committed notebook, executed anew in an empty folder. variables: of its environment."""
    notebook = read(name)
    with TemporaryDirectory() as folder, TemporaryDirectory() as home, needs(name) as more:
        execute(notebook, folder, home, variables | more)
    return notebook


def main(arguments=None):
    """Executes and writes back, unless the outputs are not fit to be kept."""
    parser = argparse.ArgumentParser(prog="notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    names = parser.parse_args(arguments).names
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    for name in names or NAMES:
        begin = time.monotonic()
        notebook = executed(name)
        if found := [*unfit(name, notebook)]:
            sys.exit("\n".join(found))
        nbformat.write(notebook, path_of(name))
        size = path_of(name).stat().st_size // 1024
        sys.stdout.write(f"{name}: {time.monotonic() - begin:.0f} s, {size} KiB\n")


if __name__ == "__main__":
    main()
