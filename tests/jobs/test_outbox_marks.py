"""An export writes back to the outbox which of its messages were delivered, and which refused."""

import pytest

from rmq_spark.errors import OutboxMisused
from rmq_spark.jobs.targets.base import OutboxMarks

from .trade import Killed, order

TRACKED = ("--tracked", "--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=4")


@pytest.fixture(params=["postgresql_server", "mariadb_server"])
def database(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def shop(trade):
    """Three orders that a tracked relay has sent. The target table refuses the last one."""
    trade.relay("--create-tables", *TRACKED)
    trade.table, outbox = f"{trade.table}_to", trade.table
    for number, sku in enumerate(("A", "B", "BAD"), start=1):
        content = order(number, sku)
        trade.sql(f"INSERT INTO {outbox} (content, delay) VALUES ('{content}', 0)")
    trade.job("relay_outbox", "--table", outbox, "--once", *TRACKED)
    trade.outbox = outbox
    return trade


def marks(shop):
    """The arguments of an export that marks."""
    return ("--outbox", shop.database.url, "--outbox-table", shop.outbox)


def states(shop):
    return [state for (state,) in shop.sql(f"SELECT state FROM {shop.outbox} ORDER BY id")]


def unexpected(shop):
    return shop.sql(f"SELECT reason FROM {shop.outbox}_exceptions")


def test_rows_of_a_table_are_marked(shop, to_table):
    to_table(*marks(shop))
    assert states(shop) == ["delivered", "delivered", "refused"]
    assert unexpected(shop) == []
    assert shop.count("SELECT count(*) FROM {t}") == 2


def test_files_have_no_column_for_the_header_that_names_the_row(shop, spark, tmp_path):
    folder = str(tmp_path / "files")
    shop.export("--to", "parquet", "--path", folder, "--checkpoint", tmp_path / "c", *marks(shop))
    assert states(shop) == ["delivered"] * 3
    assert "headers" not in spark.read.parquet(folder).columns


@pytest.mark.long
@pytest.mark.parametrize("moment", ["refused", "delivered"])
def test_an_export_that_is_killed_before_a_mark_marks_when_it_is_started_again(
    shop, to_table, monkeypatch, moment
):
    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(OutboxMarks, moment, killed)
        with pytest.raises(Exception, match="Killed"):
            to_table(*marks(shop))
    assert "delivered" not in states(shop)
    to_table(*marks(shop))
    assert states(shop) == ["delivered", "delivered", "refused"]
    assert unexpected(shop) == []
    assert shop.count("SELECT count(*) FROM {t}") == 2


@pytest.mark.long
def test_a_row_in_another_state_stays_and_is_noted_with_both_states(shop, to_table):
    shop.sql(f"UPDATE {shop.outbox} SET state = 'recalled' WHERE id = 1")
    to_table(*marks(shop))
    assert states(shop) == ["recalled", "delivered", "refused"]
    ((reason,),) = unexpected(shop)
    assert "The message is delivered, but its state here is recalled" in reason


@pytest.mark.long
def test_messages_of_no_outbox_are_exported_and_mark_nothing(shop, to_table):
    shop.orders([order(7)])
    to_table(*marks(shop))
    assert states(shop) == ["delivered", "delivered", "refused"]
    assert shop.count("SELECT count(*) FROM {t}") == 3


def test_an_outbox_that_is_not_there_is_told_before_a_message_is_taken(shop, to_table):
    with pytest.raises(OutboxMisused, match="There is no table nowhere"):
        to_table("--outbox", shop.database.url, "--outbox-table", "nowhere")
    assert shop.broker.queue("Orders").figures().messages == 3
    assert states(shop) == ["sent"] * 3
