"""The figures of real queries, as their listener keeps them."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from rmq_spark.inspect.queries import MOST_ENDED, QueryMetrics
from rmq_spark.local.redis import LocalRedis
from rmq_spark.spark.compatibility import TELLS_START

from ..spark.driving import Rmq
from ..waiting import wait_until

LABELS = ("query", "topic")


@pytest.fixture
def metrics(spark):
    registry = CollectorRegistry()
    listener = QueryMetrics(registry)
    spark.streams.addListener(listener)
    yield registry
    spark.streams.removeListener(listener)


@pytest.fixture
def rmq(request, tmp_path):
    with LocalRedis(settings={"appendonly": "no"}) as server:
        rmq = Rmq(server.url, request.node.originalname, tmp_path)
        yield rmq
        rmq.close()


@pytest.mark.skipif(not TELLS_START, reason="before Spark 4.2, a query does not show its backlog")
def test_a_query_tells_what_it_read_and_what_became_of_it(spark, rmq, metrics):
    queue = rmq.due(50)
    name = queue.definition.name
    query = (
        rmq.read(spark, queue)
        .writeStream.format("noop")
        .queryName("billing")
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )

    def value(metric, **labels):
        return metrics.get_sample_value(metric, {"query": "billing", **labels})

    try:
        wait_until(lambda: value("rmq_query_received_total") == 50, "50 messages are counted")
        assert value("rmq_query_active") == 1
        assert value("rmq_query_batch_seconds_count") >= 1
        queue.send(["late"], fixed_time=99)
        wait_until(
            lambda: value("rmq_query_events", topic=name, event="committed") >= 50,
            "the commit of the first batch is seen",
        )
        assert value("rmq_query_messages", topic=name, state="dead") == 0
        wait_until(
            lambda: value("rmq_query_lateness_seconds", topic=name) == 0,
            "an idle query is not late",
        )
        assert value("rmq_query_messages", topic=name, state="due") == 0
    finally:
        query.stop()
    wait_until(lambda: value("rmq_query_active") == 0, "its end is seen")
    wait_until(
        lambda: value("rmq_query_lateness_seconds", topic=name) is None,
        "of its queues nothing more is told",
    )
    assert value("rmq_query_failures_total") == 0


@pytest.mark.skipif(not TELLS_START, reason="before Spark 4.2, a query does not show its backlog")
def test_the_rows_of_other_sources_are_not_counted(spark, rmq, metrics):
    others = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    frame = rmq.read(spark, rmq.due(50)).select("content")
    query = (
        frame.union(others.selectExpr("CAST(value AS STRING)"))
        .writeStream.format("noop")
        .queryName("mixed")
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )

    def read(of):
        return sum(one["sources"][of]["numInputRows"] for one in query.recentProgress)

    try:
        wait_until(lambda: read(0) == 50 and read(1), "both sources are read")
    finally:
        query.stop()
    mixed = {"query": "mixed"}
    wait_until(lambda: metrics.get_sample_value("rmq_query_active", mixed) == 0, "its end is seen")
    assert metrics.get_sample_value("rmq_query_received_total", mixed) == 50


def test_a_query_that_fails_is_counted(spark, rmq, metrics):
    queue = rmq.due(1)

    def fail(frame, number):
        raise RuntimeError("on purpose")

    query = (
        rmq.read(spark, queue)
        .writeStream.foreachBatch(fail)
        .queryName("failing")
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )
    with pytest.raises(Exception, match="on purpose"):
        query.awaitTermination(60)
    failed = {"query": "failing"}
    wait_until(
        lambda: metrics.get_sample_value("rmq_query_failures_total", failed) == 1, "it is counted"
    )
    wait_until(
        lambda: metrics.get_sample_value("rmq_query_active", failed) == 0, "it is not active"
    )


def test_a_query_of_another_source_is_left_out(spark, rmq, metrics):
    query = (
        spark.readStream.format("rate")
        .load()
        .writeStream.format("noop")
        .queryName("other")
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )
    wait_until(lambda: query.lastProgress is not None, "it makes progress")
    query.stop()
    assert metrics.get_sample_value("rmq_query_received_total", {"query": "other"}) is None


def test_queries_that_ended_long_ago_are_forgotten():
    """A driver that starts a query for each run once had more series with each."""
    registry = CollectorRegistry()
    metrics = QueryMetrics(registry)
    for number in range(MOST_ENDED + 20):
        started(metrics, f"q{number}")
        ended(metrics, f"q{number}", "an error")
    started(metrics, "q30")  # again, so that it does not count as ended
    for number in range(MOST_ENDED + 20, MOST_ENDED + 40):
        started(metrics, f"q{number}")
        ended(metrics, f"q{number}", None)
    failed = {
        sample.labels["query"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "rmq_query_failures_total"
    }
    kept = {f"q{number}" for number in range(40, MOST_ENDED + 40)}
    assert failed.keys() == kept | {"q30"}
    assert failed["q30"] == failed[f"q{MOST_ENDED + 19}"] == 1
    assert registry.get_sample_value("rmq_query_active", {"query": "q30"}) == 1
    assert registry.get_sample_value("rmq_query_active", {"query": "q0"}) is None


def test_a_run_that_is_told_late_to_have_ended_does_not_end_the_next_one():
    """Failed before: the figures of the next run had the id of the query in place of its name."""
    registry = CollectorRegistry()
    metrics = QueryMetrics(registry)
    started(metrics, "q")
    started(metrics, "q", run=2)
    ended(metrics, "q", "an error")
    active, failures = (f"rmq_query_{one}" for one in ("active", "failures_total"))
    assert registry.get_sample_value(active, {"query": "q"}) == 1
    assert registry.get_sample_value(failures, {"query": "q"}) == 1
    ended(metrics, "q", None, run=2)
    assert registry.get_sample_value(active, {"query": "q"}) == 0


def started(metrics, name, run=1):
    metrics.onQueryStarted(SimpleNamespace(id=name, name=name, runId=(name, run)))


def ended(metrics, name, exception, run=1):
    event = SimpleNamespace(id=name, runId=(name, run), exception=exception)
    metrics.onQueryTerminated(event)
