"""The DAG of examples/airflow, in an Airflow of its own that pip installs."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from rmq_spark.client import connect

from .. import ROOT, missing, programs, quick_spark

DAG = ROOT / "examples/airflow/drain_orders.py"
PACKAGES = ("apache-airflow-core==3.3.2", "apache-airflow-providers-standard==1.21.0")
STEP_S = 280
ORDERS = [f"order {number}" for number in range(100)]
LATE = [f"late order {number}" for number in range(20)]
SETTINGS = """
from drain_orders import dag
(task,) = dag.tasks
print(dag.max_active_runs, dag.catchup, task.retries)
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """The folder with the programs of Airflow."""
    folder = tmp_path_factory.mktemp("airflow")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=STEP_S)
    pip = [folder / "bin/pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *PACKAGES], capture_output=True, text=True, timeout=STEP_S)
    if done.returncode:
        missing.do_without("Airflow, which pip did not get", done.stderr[-500:])
    return folder / "bin"


@pytest.mark.rounds
def test_each_message_is_written_once_however_often_it_runs(airflow, own_redis, tmp_path):
    shop, dags = tmp_path / "shop", tmp_path / "dags"
    shop.mkdir()
    dags.mkdir()
    (shop / "venv").symlink_to(Path(sys.executable).parent.parent)
    (dags / DAG.name).write_text(DAG.read_text("utf-8").replace("/srv/shop", str(shop)))
    variables = programs.environment(
        AIRFLOW_HOME=str(tmp_path / "home"),
        AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        RMQ_REDIS_URL=own_redis.url,
        **quick_spark.variables(),
    )

    def call(*words):
        done = subprocess.run(
            words, cwd=dags, env=variables, capture_output=True, text=True, timeout=STEP_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run():
        return call(airflow / "airflow", "dags", "test", "drain_orders")

    call(airflow / "airflow", "db", "migrate")
    assert call(airflow / "python", "-c", SETTINGS).split()[-3:] == ["1", "False", "3"]
    with connect(own_redis.url) as broker:
        broker.create("Orders", "FixedTime", 4)
        orders = broker.queue("Orders")
        orders.send(ORDERS, fixed_time=0)
        orders.send(["tomorrow's order"], delay="24h")
        assert "100 messages done" in run()
        assert "0 messages done" in run()
        orders.send(LATE, fixed_time=0)
        assert "20 messages done" in run()
        figures = orders.figures()
    assert (figures.counters["committed"], figures.store.count) == (120, 1)
    assert (figures.prepare.count, figures.retry.count, figures.dead.count) == (0, 0, 0)
    assert written(shop / "orders") == sorted([*ORDERS, *LATE])


def written(folder):
    """The contents in all batches of a folder."""
    files = folder.rglob("*.parquet")
    return sorted(
        text for file in files for text in parquet.read_table(file)["content"].to_pylist()
    )
