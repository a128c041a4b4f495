"""The rows of an Iceberg table into a topic: once for each name of a run."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from .iceberg_catalog import TABLE, Warehouse

KINDS = {
    "id": pa.int64(),
    "sku": pa.large_string(),
    "at": pa.timestamp("us", "UTC"),
    "price": pa.decimal128(9, 2),
    "raw": pa.binary(),
    "tags": pa.list_(pa.string()),
}
ROW = {
    "id": 1,
    "sku": "A",
    "at": datetime(2026, 11, 24, tzinfo=UTC),
    "price": Decimal("1.50"),
    "raw": b"x",
    "tags": ["a", "b"],
}
TEXT = "concat_ws(' ', id, sku, unix_seconds(at), price, CAST(raw AS STRING), tags) AS content"


def of(*ids):
    return pa.Table.from_pylist([{**ROW, "id": each} for each in ids], schema=pa.schema(KINDS))


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "lake")


@pytest.fixture
def send(trade, warehouse):
    def send(*arguments):
        return trade.job(
            *("send", "--from", "iceberg", "--table", TABLE),
            *warehouse.options("--source-option"),
            *("--topic", "Back", "-o", "topicType=FixedTime"),
            *("--select", f"{TEXT}, 0 AS fixedTime", *arguments),
        )

    return send


@pytest.mark.long
def test_a_run_sends_the_rows_of_the_table_once(trade, warehouse, send):
    table = warehouse.create(pa.schema(KINDS))
    table.append(of(1, 2))
    run = ("--checkpoint", trade.folder / "runs", "--run", "monday")
    assert send(*run) == "2 rows sent"
    seconds = int(ROW["at"].timestamp())
    assert trade.contents("Back") == [f"{number} A {seconds} 1.50 x a b" for number in (1, 2)]
    with trade.broker.consumer("Back", "tests") as consumer:
        consumer.poll(100).commit()
    table.append(of(3))
    assert send(*run).startswith("0 rows sent")
    assert trade.contents("Back") == []


def test_what_cannot_be_read_is_told(trade, warehouse, send):
    with pytest.raises(Exception, match=r"There is no Iceberg table shop\.orders"):
        send()
    with pytest.raises(
        Exception, match=r"PyIceberg cannot read --table shop\.orders with --stream"
    ):
        send("--stream", "--checkpoint", trade.folder / "sent")
