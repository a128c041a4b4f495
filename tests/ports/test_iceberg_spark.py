"""A topic into a table of Iceberg and back, by Iceberg's connector in the tasks of Spark."""

import json
import re
import sys

import pytest
from pyspark.sql import functions as sql

from rmq_spark.jobs.targets import iceberg
from rmq_spark.jobs.targets.base import NUMBER, ExportBatch, Place
from rmq_spark.jobs.targets.iceberg import SparkIcebergTarget

from .. import ROOT
from ..jobs.trade import SELECT, Killed, order
from . import iceberg_spark
from .iceberg_spark import SparkWarehouse
from .lake_ports import IcebergSparkTarget
from .port_round import run_round

needs_connector = pytest.mark.skipif(
    not iceberg_spark.IS_FOR_THIS_SPARK, reason="Iceberg has no connector for this Spark."
)


@pytest.fixture
def lake(spark, tmp_path):
    iceberg_spark.connector()
    warehouse = SparkWarehouse(tmp_path / "lake")
    for name, value in warehouse.settings.items():
        spark.conf.set(name, value)
    yield warehouse
    for name in warehouse.settings:
        spark.conf.unset(name)


@pytest.fixture
def to_lake(trade, lake):
    """Exports into the table."""

    def export(*arguments, select=SELECT, table=None):
        return trade.export(
            *("--to", "iceberg", "--table", table or lake.table, "--select", select),
            *("--checkpoint", trade.folder / "checkpoint", *arguments),
        )

    return export


@pytest.fixture
def new_target(spark, lake, tmp_path):
    """Makes targets whose batches hold the numbers from 0."""
    return lambda: SparkIcebergTarget(
        Place(spark, None, {"table": lake.table}, str(tmp_path / "exceptions"))
    )


def batch_of(spark, number, rows=3):
    messages = spark.range(rows).select(sql.col("id").alias(NUMBER), "id")
    return ExportBatch(messages, lambda rows: rows, "query-of-the-test", number, 10)


def ids(lake):
    return sorted(row["id"] for row in lake.rows())


def refused(trade):
    rows = trade.spark.read.parquet(f"{trade.folder}/checkpoint_exceptions").collect()
    return sorted((row.content, row.reason) for row in rows)


def before_publishing(monkeypatch, act, times=1):
    """Does something when the next batches are about to be published."""
    published = SparkIcebergTarget._try_to_publish
    acts = [act] * times

    def later(*arguments, **named):
        if acts:
            acts.pop()()
        return published(*arguments, **named)

    monkeypatch.setattr(SparkIcebergTarget, "_try_to_publish", later)


def before_the_commit(monkeypatch, act, times=1):
    """Does something when a change of the property is ready to be committed."""
    name, acts = iceberg.property_of, [act] * times

    def later(batch):
        # After the look at the property, and before the commit.
        if acts and sys._getframe(1).f_code.co_name == "_try_to_publish":
            acts.pop()()
        return name(batch)

    monkeypatch.setattr(iceberg, "property_of", later)


def test_the_page_names_the_release_of_the_tests():
    page = (ROOT / "docs/jobs.md").read_text(encoding="utf-8")
    pom = iceberg_spark.POM.read_text(encoding="utf-8")
    version = re.search(
        r"packages=org\.apache\.iceberg:iceberg-spark-runtime-4\.0_2\.13:(\S+)", page
    )
    assert f"<version>{version[1]}</version>" in pom


def test_a_topic_goes_into_a_table_which_is_made(trade, lake, to_lake):
    trade.orders(order(n) for n in range(50))
    assert to_lake() == "50 messages done, 0 of them refused"
    trade.orders([order(50)])
    assert to_lake("--target-option", "fanout-enabled=true") == "1 messages done, 0 of them refused"
    assert ids(lake) == list(range(51))
    (name,) = (name for name in lake.seen().properties if name.startswith("rmq.export."))
    assert lake.seen().properties[name] == "1"
    back = ("send", "--from", "iceberg", "--table", lake.table, "--topic", "Back")
    select = ("--select", "CAST(id AS STRING) AS content, 0 AS fixedTime", "-o")
    assert trade.job(*back, *select, "topicType=FixedTime", "--where", "id > 47") == "Sent."
    assert trade.contents("Back") == ["48", "49", "50"]


@pytest.mark.parametrize("moment", ["after the files", "after the commit"])
def test_a_batch_that_was_killed_is_written_once(trade, lake, to_lake, monkeypatch, moment):
    """Also if its snapshots have expired before it comes again."""
    trade.orders([order(0)])
    to_lake()
    trade.orders([order(1), order("x")])
    with monkeypatch.context() as patched:

        def die(*_, **__):
            raise Killed

        if moment == "after the files":
            patched.setattr(SparkIcebergTarget, "_try_to_publish", die)
        else:
            patched.setattr(SparkIcebergTarget, "write", _and_die(SparkIcebergTarget.write))
        with pytest.raises(Exception, match="Killed"):
            to_lake()
    is_written = moment == "after the commit"
    assert ids(lake) == ([0, 1] if is_written else [0])
    trade.spark.range(0).selectExpr("1 AS id", "'' AS sku").writeTo(lake.table).append()
    trade.spark.sql(
        f"CALL {lake.catalog}.system.expire_snapshots(table => 'shop.orders', "
        "older_than => now(), retain_last => 1)"
    )
    assert len(lake.seen().snapshots()) == 1
    assert to_lake() == f"2 messages done, {int(not is_written)} of them refused"
    assert ids(lake) == [0, 1]
    assert [content for content, _ in refused(trade)] == [order("x")]


def _and_die(done):
    def instead(*arguments):
        done(*arguments)
        raise Killed

    return instead


@pytest.mark.parametrize("exists", [True, False])
def test_of_two_exports_that_write_a_batch_at_once_one_publishes_it(
    spark, lake, new_target, monkeypatch, exists
):
    one, two = new_target(), new_target()
    if exists:
        one.write(batch_of(spark, 0, 1))
    for moment in (before_publishing, before_the_commit):
        with monkeypatch.context() as patched:
            number = 1 if moment is before_publishing else 2
            moment(patched, lambda number=number: two.write(batch_of(spark, number)))
            one.write(batch_of(spark, number))
    assert ids(lake) == sorted([0, 1, 2] * 2 + [0] * exists)


@pytest.mark.parametrize("version", [2, 3])
def test_other_writers_between_hinder_nothing(spark, lake, new_target, monkeypatch, version):
    spark.sql(
        f"CREATE TABLE {lake.table} (id BIGINT) USING iceberg "
        f"TBLPROPERTIES ('format-version' = '{version}')"
    )
    target = new_target()
    target.write(batch_of(spark, 0, 1))

    def append():
        spark.sql(f"INSERT INTO {lake.table} VALUES (100)")

    before_publishing(monkeypatch, append)
    before_the_commit(monkeypatch, append, times=3)
    target.write(batch_of(spark, 1))
    assert ids(lake) == [0, 0, 1, 2, 100, 100, 100, 100]
    before_the_commit(monkeypatch, append, times=5)
    with pytest.raises(Exception, match=r"Other writers changed .*commit\.retry\.num-retries"):
        target.write(batch_of(spark, 2))
    target.write(batch_of(spark, 2))
    assert ids(lake) == sorted([0, *range(3), *range(3), *[100] * 9])


def test_a_staged_batch_that_expires_too_early_is_told(spark, lake, new_target, monkeypatch):
    target = new_target()
    target.write(batch_of(spark, 0, 1))
    expire = (
        f"CALL {lake.catalog}.system.expire_snapshots(table => 'shop.orders', "
        "older_than => now(), retain_last => 1)"
    )
    with monkeypatch.context() as patched:
        before_the_commit(patched, lambda: spark.sql(expire))
        with pytest.raises(Exception, match="does not have the snapshot that was staged"):
            target.write(batch_of(spark, 1))
    target.write(batch_of(spark, 1))
    assert ids(lake) == [0, 0, 1, 2]


@pytest.mark.parametrize("version", [2, 3])
def test_what_the_table_does_not_take_is_refused(trade, lake, to_lake, version):
    trade.spark.sql(
        f"CREATE TABLE {lake.table} (id INT NOT NULL, SKU STRING, other DATE) USING iceberg "
        f"PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ('format-version' = '{version}')"
    )
    good = [order(n) for n in range(20)]
    bad = {order("x"): "CAST", json.dumps({"sku": "A"}): "id is required", order(10**11): "CAST"}
    trade.orders([*good, *bad])
    wide = SELECT.replace("AS INT", "AS BIGINT")
    assert to_lake(select=wide) == "23 messages done, 3 of them refused"
    trade.spark.sql(f"REFRESH TABLE {lake.table}")
    found = trade.spark.table(lake.table).collect()
    assert sorted((row.id, row.SKU, row.other) for row in found) == [
        (n, "A", None) for n in range(20)
    ]
    assert [(content, bad[content] in reason) for content, reason in refused(trade)] == [
        (content, True) for content in sorted(bad)
    ]


@pytest.mark.parametrize("select", ["1 AS id, 'a' AS other", "current_date() AS id", "'a' AS sku"])
def test_a_table_of_another_schema_is_told_and_nothing_is_lost(trade, lake, to_lake, select):
    trade.spark.sql(f"CREATE TABLE {lake.table} (id INT NOT NULL, sku STRING) USING iceberg")
    trade.orders([order(1)])
    with pytest.raises(Exception, match=r"do not fit the columns of .*--select.* The rows have "):
        to_lake(select=select)
    assert not (trade.folder / "checkpoint_exceptions").exists()
    to_lake()
    to_lake()  # on Spark 4.0, the first one replays a batch that no task has begun
    assert ids(lake) == [1]


def test_a_table_that_cannot_be_made_is_told(trade, to_lake):
    trade.orders([order(1)])
    with pytest.raises(Exception, match=r"shop\.orders cannot be created: "):
        to_lake(select="now() - now() AS since")
    assert trade.broker.queue("Orders").figures().messages == 1


def test_a_table_that_was_dropped_is_made_anew_and_gets_what_comes(trade, lake, to_lake):
    trade.orders([order(1)])
    to_lake()
    trade.spark.sql(f"DROP TABLE {lake.table} PURGE")
    trade.orders([order(2)])
    to_lake()
    assert ids(lake) == [2]


def test_a_stream_from_a_table_sends_each_row_once(trade, lake):
    trade.spark.sql(f"CREATE NAMESPACE {lake.catalog}.shop")
    trade.spark.sql(f"CREATE TABLE {lake.table} (id INT) USING iceberg")
    for first in (0, 3):
        trade.spark.sql(f"INSERT INTO {lake.table} VALUES ({first}), ({first + 1})")
        trade.job(
            *("send", "--from", "iceberg", "--table", lake.table, "--stream", "--once"),
            *("--checkpoint", trade.folder / "sent", "--topic", "Back"),
            *(
                "-o",
                "topicType=FixedTime",
                "--select",
                "CAST(id AS STRING) AS content, 0 AS fixedTime",
            ),
        )
    assert trade.contents("Back") == ["0", "1", "3", "4"]
    assert trade.broker.queue("Back").figures().counters["accepted"] == 4


def test_what_is_wrong_with_a_catalog_is_told(trade, lake, to_lake):
    setting = f"spark.sql.catalog.{lake.catalog}"
    wrong = ("--target-option", "uri=sqlite:///lake.db")
    with pytest.raises(Exception, match=rf"has no option uri here\. .*--conf {setting}\.type="):
        to_lake(*wrong)
    with pytest.raises(Exception, match="has no option branch here"):
        to_lake("--target-option", "branch=audit")
    with pytest.raises(Exception, match=rf"names no namespace .*{lake.catalog}\.NAMESPACE\.TABLE"):
        to_lake(table=f"{lake.catalog}.orders")
    trade.spark.conf.set(f"{setting}x", iceberg_spark.CATALOG)
    trade.spark.conf.set(f"{setting}x.type", "nix")
    with pytest.raises(Exception, match="cannot be opened: Unknown catalog type: nix"):
        to_lake(table=f"{lake.catalog}x.shop.orders")
    jdbc = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    trade.spark.conf.set(f"{setting}y", jdbc)
    trade.spark.conf.set(f"{setting}y.url", "jdbc:derby:memory:x;create=true")
    trade.spark.conf.set(f"{setting}y.driver", "org.apache.derby.iapi.jdbc.AutoloadedDriver")
    with pytest.raises(Exception, match="which is not one of Iceberg"):
        to_lake(table=f"{lake.catalog}y.shop.orders")


@pytest.mark.skipif(iceberg_spark.IS_FOR_THIS_SPARK, reason="Spark has the connector.")
@pytest.mark.parametrize(
    "job",
    [
        ("export", "--topic", "Orders", "--checkpoint", "checkpoint", "--to"),
        ("send", "--topic", "Orders", "--from"),
    ],
)
def test_a_catalog_without_its_connector_is_told(trade, job):
    trade.spark.conf.set("spark.sql.catalog.absent", iceberg_spark.CATALOG)
    told = r"iceberg-spark-runtime-4\.[01]_2\.13:\S+ .*write with PyIceberg: remove the setting"
    try:
        with pytest.raises(Exception, match=told):
            trade.job(*job, "iceberg", "--table", "absent.shop.orders")
    finally:
        trade.spark.conf.unset("spark.sql.catalog.absent")


@needs_connector
@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_message_arrives_while_the_job_is_killed():
    outcome, _ = run_round(IcebergSparkTarget, seed=3, messages=1200, kills=3)
    assert outcome.is_right(is_once=True), outcome
    assert outcome.in_work > 0
