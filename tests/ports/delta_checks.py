"""A topic into tables of Delta Lake and back, on a Spark with Delta: test_delta runs it."""

import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from rmq_spark.jobs.targets.base import NUMBER, ExportBatch, Place
from rmq_spark.jobs.targets.delta import DeltaTarget

from ..jobs.trade import SELECT, Killed, order
from ..waiting import wait_until
from . import delta_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]")
    settings = {
        **delta_spark.settings(),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={folder}",
    }
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def to_delta(trade):
    """Exports into the table in the folder ``orders``."""

    def export(*arguments, select=SELECT, place=None):
        place = place or ("--path", trade.folder / "orders")
        return trade.export(
            *("--to", "delta", *place, "--checkpoint", trade.folder / "checkpoint"),
            *("--select", select, *arguments),
        )

    return export


def rows(trade, name="orders"):
    """The table, as a reader sees it that is not Spark."""
    return DeltaTable(str(trade.folder / name)).to_pyarrow_table().to_pylist()


def ids(trade):
    return sorted(row["id"] for row in rows(trade))


def refused(trade):
    found = trade.spark.read.parquet(f"{trade.folder}/checkpoint_exceptions").collect()
    return sorted((row.content, row.reason) for row in found)


def test_a_topic_goes_into_a_table_which_is_made(trade, to_delta):
    trade.orders(order(n) for n in range(50))
    assert to_delta() == "50 messages done, 0 of them refused"
    trade.orders([order(50)])
    assert to_delta() == "1 messages done, 0 of them refused"
    assert ids(trade) == list(range(51))


def test_a_table_may_be_named(trade, to_delta):
    trade.orders([order(1), order(2)])
    place = ("--table", f"t{int(time.time())}")
    assert to_delta(place=place) == "2 messages done, 0 of them refused"
    trade.orders([order(3), order(99999999999)])
    wide = "CAST(get_json_object(content, '$.id') AS BIGINT) AS id"  # which Spark casts back
    assert to_delta(place=place, select=wide) == "2 messages done, 1 of them refused"
    assert [content for content, _ in refused(trade)] == [order(99999999999)]
    assert sorted(row.id for row in trade.spark.table(place[1]).collect()) == [1, 2, 3]
    sent = trade.job(
        *("send", "--from", "delta", *place, "--topic", "Back", "-o", "topicType=FixedTime"),
        *("--select", "CAST(id AS STRING) AS content, 0 AS fixedTime"),
    )
    assert (sent, trade.contents("Back")) == ("Sent.", ["1", "2", "3"])


def test_a_batch_that_was_committed_is_not_written_again(trade, to_delta, monkeypatch):
    """Nor if the table was compacted, its old files deleted, and its log cut in the meantime."""
    write = DeltaTarget.write

    def killed_after(*arguments):
        write(*arguments)
        raise Killed

    trade.orders([order(0)])
    to_delta()
    trade.orders([order(1), order("x")])
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTarget, "write", killed_after)
        with pytest.raises(Exception, match="Killed"):
            to_delta()
    assert [content for content, _ in refused(trade)] == [order("x")]
    table = DeltaTable(str(trade.folder / "orders"))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    table.create_checkpoint()
    for commit in Path(trade.folder / "orders/_delta_log").glob("*0[01].json"):
        commit.unlink()
    assert to_delta() == "2 messages done, 0 of them refused"
    assert ids(trade) == [0, 1]
    assert [content for content, _ in refused(trade)] == [order("x")]


def test_one_that_dies_before_the_commit_leaves_no_row(trade, to_delta, monkeypatch):
    append = DeltaTarget._append
    trade.orders([order(1), order("x")])
    with monkeypatch.context() as patched:
        calls = []

        def killed_at_the_second(self, *given):
            calls.append(given)
            if len(calls) > 1 and "txnAppId" in given[1]:
                raise Killed
            return append(self, *given)

        patched.setattr(DeltaTarget, "_append", killed_at_the_second)
        with pytest.raises(Exception, match="Killed"):
            to_delta()
    assert not list((trade.folder / "orders").rglob("*.json")), "there is a commit"
    assert to_delta() == "2 messages done, 1 of them refused"
    assert ids(trade) == [1]
    assert [content for content, _ in refused(trade)] == [order("x")]


def test_what_constraints_and_types_of_the_table_refuse_goes_to_the_exceptions(trade, to_delta):
    name = f"delta.`{trade.folder}/orders`"
    trade.spark.sql(f"CREATE TABLE {name} (id INT NOT NULL, sku VARCHAR(3)) USING delta")
    trade.spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id > 0)")
    good = [order(n) for n in range(1, 20)]
    bad = {
        order(-1): "CHECK",
        order(None): "CONSTRAINT",
        order("x"): "22018",
        order(7, "LONG"): "22",
    }
    trade.orders([*good, *bad])
    assert to_delta() == "23 messages done, 4 of them refused"
    assert ids(trade) == list(range(1, 20))
    found = dict(refused(trade))
    assert found.keys() == bad.keys()
    assert [content for content, why in bad.items() if why not in found[content]] == [], found
    assert not (trade.folder / "checkpoint/trials").exists()


@pytest.mark.parametrize(
    "select", ["'a' AS other, 1 AS id", "current_date() AS id", "CAST(1 AS BIGINT) AS id"]
)
def test_a_table_of_another_schema_is_told_and_nothing_is_lost(trade, to_delta, select):
    name = f"delta.`{trade.folder}/orders`"
    trade.spark.sql(f"CREATE TABLE {name} (id INT, sku STRING) USING delta")
    trade.orders([order(1)])
    with pytest.raises(Exception, match=r"do not fit .*--target-option mergeSchema=true"):
        to_delta(select=select)
    assert rows(trade) == []
    assert not (trade.folder / "checkpoint_exceptions").exists()
    to_delta()
    assert ids(trade) == [1]


def test_rows_without_a_required_column_are_no_fault_of_messages(trade, to_delta):
    """Failed before: all were in the exceptions, and after a better --select in the table, too."""
    place = trade.folder / "orders"
    trade.spark.sql(f"CREATE TABLE delta.`{place}` (id INT, kind STRING NOT NULL) USING delta")
    trade.orders(order(n) for n in range(5))
    with pytest.raises(Exception, match="do not fit the columns"):
        to_delta(select="get_json_object(content, '$.id')::INT AS id")
    better = "get_json_object(content, '$.id')::INT AS id, 'order' AS kind"
    assert to_delta(select=better) == "5 messages done, 0 of them refused"
    assert not (trade.folder / "checkpoint_exceptions").exists()


def test_columns_that_the_table_lacks_may_be_added(trade, to_delta):
    trade.spark.sql(f"CREATE TABLE delta.`{trade.folder}/orders` (id INT) USING delta")
    trade.orders([order(1)])
    to_delta("--target-option", "mergeSchema=true")
    assert rows(trade) == [{"id": 1, "sku": "A"}]


def test_of_two_exports_that_write_a_batch_at_once_one_writes_it(spark, tmp_path):
    path = str(tmp_path / "orders")
    spark.range(0).write.format("delta").save(path)

    @sql.udf("long")
    def slow(number):
        time.sleep(1)
        return number

    messages = (
        spark.range(3).coalesce(1).select(sql.col("id").alias(NUMBER), slow("id").alias("id"))
    )
    errors = []

    def write():
        given = Namespace(table=None, checkpoint=str(tmp_path))
        target = DeltaTarget(Place(spark, given, {"path": path}, f"{path}_exceptions"))
        try:
            target.write(ExportBatch(messages, lambda rows: rows, "query", 0, 10))
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = DeltaTable(path)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2]
    assert table.transaction_version("query") == 0
    assert all("ConcurrentTransaction" in error for error in errors), errors
    assert len(errors) < 2


def test_a_table_that_was_deleted_is_made_anew_and_gets_what_comes(trade, to_delta):
    trade.orders([order(1)])
    to_delta(place=("--table", "default.gone"))
    trade.spark.sql("DROP TABLE default.gone")
    trade.orders([order(2)])
    to_delta(place=("--table", "default.gone"))
    assert [row.id for row in trade.spark.table("default.gone").collect()] == [2]
    trade.spark.sql("DROP TABLE default.gone")


def test_a_stream_from_delta_sends_each_row_once_also_when_a_batch_is_replayed(trade):
    path = str(trade.folder / "rows")
    stream = (
        *("send", "--from", "delta", "--path", path, "--stream", "--once"),
        *("--checkpoint", trade.folder / "sent", "--topic", "Back", "-o", "topicType=FixedTime"),
        *("--select", "CAST(id AS STRING) AS content, 0 AS fixedTime"),
    )
    for first in (0, 10):
        trade.spark.range(first, first + 10).write.format("delta").mode("append").save(path)
        trade.job(*stream)
    with trade.broker.consumer("Back", "tests") as consumer:
        batch = consumer.poll(100)
        assert sorted(int(message.content) for message in batch) == list(range(20))
        batch.commit()
    # As a kill before Spark noted that the batch is done.
    for note in Path(trade.folder / "sent/commits").glob("*1*"):
        note.unlink()
    trade.job(*stream)
    assert trade.contents("Back") == []
    trade.spark.range(20, 21).write.format("delta").mode("append").save(path)
    trade.job(*stream)
    assert trade.contents("Back") == ["20"]


def test_the_streaming_sink_of_delta_skips_a_batch_that_is_replayed(trade):
    """What the pages say of Spark's own sink: here no job is at work."""
    trade.orders(["a", "b"])
    source = dict(pair.split("=", 1) for pair in trade.redis[1::2])
    messages = trade.spark.readStream.format("rmq").options(**source, topic="Orders").load()
    path, checkpoint = str(trade.folder / "orders"), trade.folder / "checkpoint"
    writer = messages.select("content").writeStream.format("delta")
    writer = writer.option("checkpointLocation", str(checkpoint))

    def run_one_batch():
        query = writer.trigger(processingTime="1 hour").start(path)
        wait_until(lambda: query.lastProgress, "the batch is done", 60)
        query.stop()
        assert trade.broker.queue("Orders").figures().prepare.count == 2

    run_one_batch()
    # As a kill before Spark noted that the batch is done.
    for note in Path(checkpoint, "commits").iterdir():
        note.unlink()
    run_one_batch()
    assert sorted(row["content"] for row in rows(trade)) == ["a", "b"]
