"""The one line that is left of a Spark error."""

import pytest

from rmq_spark.spark.failure_cause import cause

PYTHON = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "worker.py", line 69, in worker_run
    main(infile, outfile)
rmq_spark.errors.ServerFull: Redis has reached maxmemory.
 SQLSTATE: 38000
\tat org.apache.spark.Runner.init(Runner.scala:139)"""
JAVA = """\
An error occurred while calling o119.load.
: org.apache.spark.SparkClassNotFoundException: no rmq
\tat org.apache.spark.Runner.init(Runner.scala:139)"""
BOTH = """\
Failed: Traceback (most recent call last):
  File "utils.py", line 163, in call
    self.func(frame, batch_id)
py4j.protocol.Py4JJavaError: An error occurred while calling o3684.apply.
: org.postgresql.util.PSQLException: FATAL: password authentication failed
\tat org.postgresql.Driver.connect(Driver.java:1)"""
SPARK = "[UNRESOLVED_COLUMN] no such column\n'Project [x]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PYTHON, "rmq_spark.errors.ServerFull: Redis has reached maxmemory."),
        (JAVA, "org.apache.spark.SparkClassNotFoundException: no rmq"),
        (BOTH, "org.postgresql.util.PSQLException: FATAL: password authentication failed"),
        (SPARK, "[UNRESOLVED_COLUMN] no such column"),
        ("", "RuntimeError"),
    ],
)
def test_it_is_the_line_that_tells_why(text, told):
    assert cause(RuntimeError(text)) == told
