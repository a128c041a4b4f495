"""Exactly once and without what is refused, in each database that export is tested with."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rmq_spark.jobs.targets.base import ExportBatch, Place
from rmq_spark.jobs.targets.jdbc import JdbcTarget
from rmq_spark.spark.failure_cause import cause
from rmq_spark.sql.jdbc import jdbc_options

from ..waiting import wait_until
from .trade import Killed, order


@pytest.fixture(params=["postgresql_server", "mariadb_server"])
def database(request):
    return request.getfixturevalue(request.param)


def test_of_two_messages_with_one_key_the_first_stays(trade, to_table):
    trade.orders([order(1, "A")])
    trade.orders([order(1, "B")], slot_basis="x")
    to_table()
    assert trade.count("SELECT count(*) FROM {t}") == 1
    assert trade.sql("SELECT left(reason, 11) FROM {t}_exceptions") == [["SQLSTATE 23"]]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["_fill", "_note", "_insert"])
def test_a_batch_that_is_cut_off_before_its_commit_is_written_once(
    trade, to_table, monkeypatch, moment
):
    def killed(*_):
        raise Killed

    trade.orders([order(1), order(2), order(3, "BAD")])
    with monkeypatch.context() as patched:
        patched.setattr(JdbcTarget, moment, killed)
        with pytest.raises(Exception, match="Killed"):
            to_table()
    assert trade.count("SELECT count(*) FROM {t}") == 0
    to_table()
    assert trade.count("SELECT count(*) FROM {t}") == 2
    assert trade.count("SELECT count(*) FROM {t}_exceptions") == 1


@pytest.mark.long
def test_a_batch_that_is_cut_off_after_its_commit_is_written_once(trade, to_table, monkeypatch):
    write = JdbcTarget.write

    def killed_after(*arguments):
        write(*arguments)
        raise Killed

    trade.orders([order(1), order(2), order(3, "BAD")])
    with monkeypatch.context() as patched:
        patched.setattr(JdbcTarget, "write", killed_after)
        with pytest.raises(Exception, match="Killed"):
            to_table()
    to_table()
    assert trade.count("SELECT count(*) FROM {t}") == 2
    assert trade.count("SELECT count(*) FROM {t}_exceptions") == 1


def test_a_task_that_is_run_twice_writes_once(trade, to_table, monkeypatch):
    append = JdbcTarget._append
    times = []

    def lost_and_run_again(self, rows, table):
        append(self, rows, table)
        if not times:
            times.append(table)
            append(self, rows.limit(2), table)

    trade.orders([order(1), order(2), order(3)])
    monkeypatch.setattr(JdbcTarget, "_append", lost_and_run_again)
    assert to_table() == "3 messages done, 0 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 3


def test_a_ledger_that_somebody_empties_fails_the_batch_which_comes_again(
    trade, to_table, monkeypatch
):
    fill = JdbcTarget._fill

    def in_an_empty_ledger(self, batch):
        trade.sql("DELETE FROM rmq_export")
        return fill(self, batch)

    trade.orders([order(1), order(2)])
    with monkeypatch.context() as patched:
        patched.setattr(JdbcTarget, "_fill", in_an_empty_ledger)
        with pytest.raises(Exception, match="in rmq_export is gone"):
            to_table()
    assert to_table() == "2 messages done, 0 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 2


@pytest.mark.long
def test_rows_that_an_earlier_attempt_still_brings_count_for_nothing(trade, to_table, monkeypatch):
    insert = JdbcTarget._insert

    def after_late_rows(self, connection, batch):
        trade.sql(
            f"INSERT INTO {self._stage} (id, sku, rmq_number, rmq_attempt, rmq_row) "
            f"SELECT id + 10, sku, rmq_number, rmq_attempt - 1, rmq_row FROM {self._stage}"
        )
        return insert(self, connection, batch)

    trade.orders([order(1), order(2), order("x")])
    monkeypatch.setattr(JdbcTarget, "_insert", after_late_rows)
    assert to_table() == "3 messages done, 1 of them refused"
    assert trade.sql("SELECT id FROM {t} ORDER BY 1") == [["1"], ["2"]]


@pytest.mark.long
def test_rows_that_come_between_check_and_commit_are_seen(trade, to_table, monkeypatch):
    insert = JdbcTarget._insert
    late = []

    def before_late_rows(self, connection, batch):
        refused = insert(self, connection, batch)
        if not late:
            # By another session, as a task does.
            late.append(trade.sql(f"INSERT INTO {self._stage} SELECT * FROM {self._stage}"))
        return refused

    trade.orders([order(1), order(2)])
    monkeypatch.setattr(JdbcTarget, "_insert", before_late_rows)
    assert to_table() == "2 messages done, 0 of them refused"
    assert late
    assert trade.sql("SELECT id FROM {t} ORDER BY 1") == [["1"], ["2"]]


@pytest.mark.long
def test_more_refused_than_expected_fail_the_batch_and_come_again(trade, to_table):
    trade.orders([order(1), *(order(n, "BAD") for n in range(2, 12))])
    with pytest.raises(Exception, match="More than 5 messages of one batch were") as failure:
        to_table("--max-refused", 5)
    assert "raise --max-refused" in cause(failure.value)
    assert trade.count("SELECT count(*) FROM {t}") == 0
    assert to_table("--max-refused", 10) == "11 messages done, 10 of them refused"


def test_a_column_that_the_table_lacks_is_told(trade, to_table):
    trade.orders([order(1)])
    with pytest.raises(Exception, match="has no column amount"):
        to_table("--select", "1 AS amount")


@pytest.mark.parametrize(("query", "refused"), [("a", 0), ("b", 1)])
def test_of_two_exports_at_once_the_second_waits_and_writes_nothing_twice(
    trade, monkeypatch, query, refused
):
    """With the same checkpoint (a and a), the batch is skipped; otherwise its key is refused."""
    trade.sql("CREATE TABLE {t} (id INT PRIMARY KEY)" + trade.database.table_options)
    messages = trade.spark.sql("SELECT 0L AS rmq_number, 'T' AS topic, NULL AS key, '7' AS content")
    options = jdbc_options({"url": trade.database.url, "dbtable": trade.table})

    def write(query):
        def shape(rows):
            return rows.selectExpr("rmq_number", "CAST(content AS INT) AS id")

        target = JdbcTarget(Place(trade.spark, None, options, f"{trade.table}_exceptions"))
        return target.write(ExportBatch(messages, shape, query, 0, 10))

    insert, inserted, go_on = JdbcTarget._insert, threading.Event(), threading.Event()

    def first_waits(self, connection, batch):
        found = insert(self, connection, batch)
        if not inserted.is_set():
            inserted.set()
            assert go_on.wait(60)
        return found

    monkeypatch.setattr(JdbcTarget, "_insert", first_waits)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(write, f"{trade.table}-a")
        try:
            assert inserted.wait(60), first.exception(0)
            second = pool.submit(write, f"{trade.table}-{query}")
            wait_until(lambda: trade.count(trade.database.waiting), "the second export waits")
        finally:
            go_on.set()
        assert (first.result(), second.result()) == (0, refused)
    assert trade.sql("SELECT id FROM {t}") == [["7"]]
    assert trade.count("SELECT count(*) FROM {t}_exceptions") == refused
