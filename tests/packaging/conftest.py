"""One wheel for all tests here, and environments that hold no checkout."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
import pytest

from rmq_spark.local.redis import LocalRedis

from .. import ROOT, quick_spark

SPARK_HOME = Path(pyspark.__file__).parent


@pytest.fixture(scope="session")
def checkout():
    return ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run([*pip, *build], check=True)
    return next(folder.glob("rmq_spark-*.whl"))


@pytest.fixture(scope="session")
def local_redis():
    with LocalRedis() as server:
        yield server


@pytest.fixture
def new_venv(tmp_path):
    """Makes an environment without packages, not even pip; returns its Python."""

    def new():
        folder = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        return folder / "bin" / "python"

    return new


@pytest.fixture
def bare_environ():
    """This process's environment without what leads Python or Spark to other packages."""
    leading = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RMQ_REDIS_URL")
    return {name: value for name, value in os.environ.items() if name not in leading}


@pytest.fixture
def submitting(bare_environ, spark_without_rmq):
    """The environment of a spark-submit whose executors have no rmq_spark of their own."""
    python = str(spark_without_rmq)
    return {
        **bare_environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        **quick_spark.java_variables(),
    }


@pytest.fixture
def spark_without_rmq(new_venv):
    """A Python with the packages of this one, but for the checkout.

    A .pth file inside a folder that a .pth file adds is not read, and such a file is how an
    editable install works.
    """
    python = new_venv()
    site_packages = next((python.parents[1] / "lib").glob("python*")) / "site-packages"
    (site_packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python
