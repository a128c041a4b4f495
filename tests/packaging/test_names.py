"""What `import rmq_spark` offers, and what it costs."""

import subprocess
import sys

import pytest

import rmq_spark


def test_all_is_what_the_module_offers():
    own = {
        name
        for name, value in vars(rmq_spark).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("rmq_spark.")
    }
    lazy = rmq_spark._NEED_SPARK
    assert set(rmq_spark.__all__) == own | lazy | {"__version__"}


def test_every_name_in_all_is_there():
    assert all(getattr(rmq_spark, name) is not None for name in rmq_spark.__all__)


def test_the_client_offers_what_its_all_says():
    from rmq_spark import client

    assert all(getattr(client, name) is not None for name in client.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rmq_spark' has no attribute 'Nonsense'"):
        rmq_spark.Nonsense  # noqa: B018 - the look-up is the test


@pytest.mark.parametrize("module", ["rmq_spark", "rmq_spark.client", "rmq_spark.local.redis"])
def test_importing_loads_nothing_of_spark_or_zookeeper(module):
    extras = {"pyspark", "pyarrow", "pandas", "kazoo"}
    program = f"import sys, {module}; print({extras} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
