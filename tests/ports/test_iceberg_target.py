"""A topic into tables of Iceberg: once, whatever is killed, expired, dropped or done at once."""

import json
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.table import Transaction
from pyspark.sql import functions as sql

from rmq_spark.jobs.targets import iceberg_python as iceberg_target
from rmq_spark.jobs.targets.base import NUMBER, ExportBatch, Place
from rmq_spark.jobs.targets.iceberg_python import IcebergTarget

from ..jobs.trade import SELECT, Killed, order
from ..servers import NOBODYS_PORT
from .iceberg_catalog import TABLE, Warehouse


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "lake")


@pytest.fixture
def to_table(trade, warehouse):
    """Exports into the table."""

    def export(*arguments, select=SELECT):
        return trade.export(
            *("--to", "iceberg", "--table", TABLE, *warehouse.options("--target-option")),
            *("--checkpoint", trade.folder / "checkpoint", "--select", select, *arguments),
        )

    return export


def target_at(spark, warehouse, folder):
    options = {"table": TABLE, **warehouse.properties}
    return IcebergTarget(Place(spark, None, options, str(folder / "exceptions")))


def ids(warehouse):
    return sorted(row["id"] for row in warehouse.rows())


def refused(trade):
    rows = trade.spark.read.parquet(f"{trade.folder}/checkpoint_exceptions").collect()
    return sorted((row.content, row.reason) for row in rows)


def killed(when):
    """Does what is killed before or after, as a kill of the driver at that moment."""

    def instead(done, monkeypatch, owner, name):
        def die(*arguments, **named):
            if when == "after":
                done(*arguments, **named)
            raise Killed

        monkeypatch.setattr(owner, name, die)

    return instead


@pytest.mark.long
def test_a_topic_goes_into_a_table_which_is_made(trade, warehouse, to_table):
    trade.orders(order(n) for n in range(50))
    assert to_table() == "50 messages done, 0 of them refused"
    trade.orders([order(50)])
    assert to_table() == "1 messages done, 0 of them refused"
    assert ids(warehouse) == list(range(51))
    summary = warehouse.table().current_snapshot().summary.additional_properties
    assert summary["rmq.batch"] == "1"
    (name,) = (name for name in warehouse.table().properties if name.startswith("rmq.export."))
    assert name == f"rmq.export.{summary['rmq.query']}"


@pytest.mark.long
def test_a_batch_that_was_committed_is_not_written_again(trade, warehouse, to_table, monkeypatch):
    """Not even if the snapshots that show it have expired."""
    trade.orders([order(1), order("x")])
    with monkeypatch.context() as patched:
        killed("after")(IcebergTarget.write, patched, IcebergTarget, "write")
        with pytest.raises(Exception, match="Killed"):
            to_table()
    assert refused(trade)[0][0] == order("x")
    table = warehouse.table()
    table.append(table.scan().to_arrow().slice(0, 0))  # another's, so that ours can expire
    first = table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert to_table() == "2 messages done, 0 of them refused"
    assert ids(warehouse) == [1]
    assert [content for content, _ in refused(trade)] == [order("x")]


@pytest.mark.long
def test_one_that_dies_between_the_files_and_the_commit_leaves_no_row(
    trade, warehouse, to_table, monkeypatch
):
    trade.orders([order(1), order("x")])
    with monkeypatch.context() as patched:
        killed("before")(None, patched, Transaction, "commit_transaction")
        with pytest.raises(Exception, match="Killed"):
            to_table()
    assert warehouse.rows() == []
    assert list(warehouse.folder.rglob("*.parquet")), "no files were written before the commit"
    assert to_table() == "2 messages done, 1 of them refused"
    assert ids(warehouse) == [1]
    assert [content for content, _ in refused(trade)] == [order("x")]


@pytest.mark.long
def test_what_the_table_requires_is_refused_if_it_is_null(trade, warehouse, to_table):
    fields = [pa.field("id", pa.int32(), nullable=False), pa.field("sku", pa.string())]
    warehouse.create(pa.schema(fields))
    trade.orders([order(1), json.dumps({"sku": "A"}), order(2, None)])
    assert to_table() == "3 messages done, 1 of them refused"
    assert ids(warehouse) == [1, 2]
    ((content, reason),) = refused(trade)
    assert content == json.dumps({"sku": "A"})
    assert "The column id is required, but the value is NULL." in reason


@pytest.mark.long
def test_a_table_that_was_dropped_is_made_anew_and_gets_what_comes(trade, warehouse, to_table):
    trade.orders([order(1)])
    to_table()
    warehouse.catalog.drop_table(TABLE)
    trade.orders([order(2)])
    to_table()
    assert ids(warehouse) == [2]


@pytest.mark.long
def test_times_arrive_as_they_were_in_any_time_zone(trade, warehouse, to_table):
    before = trade.spark.conf.get("spark.sql.session.timeZone")
    trade.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        trade.orders([order(1)])
        to_table(select=f"{SELECT}, timestamp_millis(1000) AS at")
    finally:
        trade.spark.conf.set("spark.sql.session.timeZone", before)
    (row,) = warehouse.rows()
    assert row["at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def batch_of(spark, number, rows=3):
    messages = spark.range(rows).select(sql.col("id").alias(NUMBER), "id")
    return ExportBatch(messages, lambda rows: rows, "query-of-the-test", number, 10)


def before_the_commit(monkeypatch, act):
    """Does something once, when a batch is about to be committed."""
    commit = Transaction.commit_transaction
    acts = [act]

    def later(self):
        if isinstance(self, iceberg_target._OneBatch) and acts:
            acts.pop()()
        return commit(self)

    monkeypatch.setattr(Transaction, "commit_transaction", later)


@pytest.mark.parametrize("exists", [True, False])
def test_of_two_exports_that_write_a_batch_at_once_one_writes_it(
    spark, warehouse, tmp_path, monkeypatch, exists
):
    one, two = (target_at(spark, warehouse, tmp_path) for _ in range(2))
    if exists:
        one.write(batch_of(spark, 0, 1))
    before_the_commit(monkeypatch, lambda: two.write(batch_of(spark, 1)))
    one.write(batch_of(spark, 1))
    assert ids(warehouse) == ([0, 0, 1, 2] if exists else [0, 1, 2])


def test_another_writer_between_hinders_nothing(spark, warehouse, tmp_path, monkeypatch):
    target = target_at(spark, warehouse, tmp_path)
    target.write(batch_of(spark, 0, 1))

    def append():
        warehouse.table().append(pa.table({"id": [100]}))

    before_the_commit(monkeypatch, append)
    target.write(batch_of(spark, 1))
    assert ids(warehouse) == [0, 0, 1, 2, 100]


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"id": pa.int64(), "other": pa.string()}, r"--select, .*id int32, sku string"),
        ({"id": pa.date32(), "sku": pa.string()}, r"do not fit the columns of .*shop\.orders"),
    ],
)
def test_a_table_of_another_schema_is_told_and_nothing_is_lost(
    trade, warehouse, to_table, columns, told, capfd
):
    warehouse.create(pa.schema(list(columns.items())))
    trade.orders([order(1)])
    with pytest.raises(Exception, match=told):
        to_table()
    assert warehouse.rows() == []
    assert "Mismatch" not in capfd.readouterr().out
    assert to_table(
        select="CAST(7 AS BIGINT) AS id" if "other" in columns else "DATE'1970-01-02' AS id"
    )
    assert len(warehouse.rows()) == 1


def test_a_table_that_cannot_be_made_is_told(trade, warehouse, to_table):
    trade.orders([order(1)])
    with pytest.raises(Exception, match=r"shop\.orders cannot be created: Column 'since' has an"):
        to_table(select="now() - now() AS since")
    assert trade.broker.queue("Orders").figures().messages == 1


def test_what_is_missing_is_told(trade, monkeypatch):
    into = ("--to", "iceberg", "--checkpoint", trade.folder / "checkpoint")
    with pytest.raises(Exception, match="The format iceberg needs --table"):
        trade.export(*into)
    with pytest.raises(Exception, match=r"--table orders .* NAMESPACE\.TABLE"):
        trade.export(*into, "--table", "orders")
    into += ("--table", TABLE)
    with pytest.raises(Exception, match=r"catalog default cannot be opened: .*such as type=sql"):
        trade.export(*into)
    rest = (
        "--target-option",
        f"uri=http://127.0.0.1:{NOBODYS_PORT}",
        "--target-option",
        "type=rest",
    )
    with pytest.raises(Exception, match=r"catalog default cannot be opened: .*refused"):
        trade.export(*into, *rest)
    monkeypatch.delitem(sys.modules, iceberg_target.__name__)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(Exception, match=r"pip install 'rmq-spark\[iceberg\]'"):
        trade.export(*into)
