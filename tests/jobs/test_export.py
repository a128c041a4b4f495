"""A topic into PostgreSQL, Derby, files and the console: once, and without what is refused."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from rmq_spark.client import Message
from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import Ending
from rmq_spark.jobs.targets.jdbc import JdbcTarget

from ..logs import logged
from .trade import SELECT, Killed, order


def test_a_topic_goes_into_a_table_of_postgresql(trade, to_table):
    stages = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'rmq_stage_%'"
    of_killed_exports = trade.count(stages)
    trade.orders(order(n) for n in range(300))
    assert to_table() == "300 messages done, 0 of them refused"
    assert trade.psql("SELECT count(*), min(id), max(id) FROM {t}") == [["300", "0", "299"]]
    assert trade.broker.queue("Orders").figures().messages == 0
    trade.orders([order(300)])
    assert to_table() == "1 messages done, 0 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 301
    assert trade.count(stages) == of_killed_exports


def test_once_refuses_a_size_that_it_could_not_learn(trade, to_table, monkeypatch):
    """Seen with Spark 4.0: it began a new query for each 10 messages."""
    monkeypatch.setattr("rmq_spark.jobs.export.TELLS_START", False)
    trade.orders([order(1)])
    with pytest.raises(InvalidOption, match=r"targetBatchDuration learns.*maxRecordsPerTrigger"):
        to_table("-o", "targetBatchDuration=10s")
    assert trade.broker.queue("Orders").figures().store.count == 1


def test_once_takes_all_that_is_due_however_small_its_batches_are(trade, to_table):
    """Failed before with Spark 4.0, which ends such a query after one batch."""
    trade.orders(order(n) for n in range(300))
    assert to_table("-o", "maxRecordsPerTrigger=100") == "300 messages done, 0 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 300


@pytest.mark.long
def test_what_the_table_or_the_transformation_refuses_goes_to_the_exceptions(trade, to_table):
    good = [order(n) for n in range(200)]
    bad = {
        order(500, "BAD"): "SQLSTATE 23514",  # the check
        order(501, "LONG"): "SQLSTATE 22001",  # too long for the column
        order("x"): "SQLSTATE 22018",  # no number: --select fails for it
        order(99999999999): "SQLSTATE 22",  # nor does it fit
        order(502, "a\0c"): "SQLSTATE 22021",  # a sign that PostgreSQL has not
    }
    trade.orders([*good, *bad])
    trade.broker.queue("Orders").send([b"\xff\xfe"], fixed_time=0)
    assert to_table() == "206 messages done, 6 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 200
    rows = dict(trade.psql("SELECT content, left(reason, 20) FROM {t}_exceptions"))
    assert rows.pop("FFFE").startswith("SQLSTATE 22029")  # no text; shown in hex
    assert rows.keys() == bad.keys()
    assert all(rows[content].startswith(state) for content, state in bad.items())
    assert trade.psql("SELECT DISTINCT topic FROM {t}_exceptions") == [["Orders"]]


@pytest.mark.long
def test_one_that_is_asked_to_end_as_it_comes_back_keeps_what_was_written(
    trade, to_table, monkeypatch
):
    write = JdbcTarget.write

    def killed_after(*arguments):
        write(*arguments)
        raise Killed

    trade.orders([order(1), order(2)])
    with monkeypatch.context() as patched:
        patched.setattr(JdbcTarget, "write", killed_after)
        with pytest.raises(Exception, match="Killed"):
            to_table()
    callers = set()

    def asked_since_the_first_batch(ending):
        callers.add(sys._getframe(1).f_code.co_name)
        return "write" in callers

    with monkeypatch.context() as patched:
        patched.setattr(Ending, "is_asked", property(asked_since_the_first_batch))
        to_table()
    assert to_table(checkpoint="another") == "0 messages done, 0 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 2


def test_without_a_name_of_the_query_nothing_is_written(trade, to_table, monkeypatch):
    trade.orders([order(1)])
    monkeypatch.setattr("rmq_spark.jobs.export.QUERY_ID", "no.such.property")
    with pytest.raises(Exception, match="PYSPARK_PIN_THREAD"):
        to_table()
    assert trade.count("SELECT count(*) FROM {t}") == 0


def test_one_message_may_become_several_rows(trade):
    trade.psql("CREATE TABLE {t} (word TEXT)")
    trade.orders(["a a b", "c"])
    arguments = ("--to", "jdbc", "--table", trade.table, "--checkpoint", trade.folder / "c")
    trade.export(*arguments, "--select", "explode(split(content, ' ')) AS word")
    assert trade.psql("SELECT word FROM {t} ORDER BY 1") == [["a"], ["a"], ["b"], ["c"]]


@pytest.mark.long
def test_a_reason_that_is_too_long_is_cut(trade):
    trade.psql("CREATE TABLE {t} (id INT)")
    long = "a" * 1900 + "\0" * 90 + "\U0001f600" * 200
    trade.orders([long, "7"])
    arguments = ("--to", "jdbc", "--table", trade.table, "--checkpoint", trade.folder / "c")
    told = trade.export(*arguments, "--select", "CAST(content AS INT) AS id")
    assert told == "2 messages done, 1 of them refused"
    length = "SELECT length(content), length(reason) BETWEEN 1000 AND 2000 FROM {t}_exceptions"
    assert trade.psql(length) == [[str(1900 + 6 * 90 + 200), "t"]]


@pytest.mark.long
def test_an_export_that_is_asked_to_end_within_a_batch_brings_it_to_its_end(trade):
    trade.psql(
        "CREATE TABLE {t} (content TEXT); CREATE FUNCTION {t}_slow() RETURNS trigger LANGUAGE "
        "plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$; CREATE TRIGGER slow "
        "BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_slow()"
    )
    trade.orders(f"order {number}" for number in range(20))
    into = ("export", "--topic", "Orders", "--to", "jdbc", "--table", trade.table)
    writing = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"

    def ask():
        while not trade.count(writing):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(SystemExit) as ended:
        trade.job(*into, "--checkpoint", trade.folder / "one", "--select", "content")
    asking.join()
    assert ended.value.code == 128 + signal.SIGTERM
    assert trade.count("SELECT count(*) FROM {t}") == 20
    another = ("--checkpoint", trade.folder / "two", "--select", "content", "--once")
    assert trade.job(*into, *another) == "0 messages done, 0 of them refused"


@pytest.mark.long
def test_a_fault_of_the_job_refuses_nothing(trade, to_table):
    trade.orders([order(1)])
    trade.psql(
        "CREATE FUNCTION {t}_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE 'no room' USING ERRCODE = 'disk_full'; END $$; "
        "CREATE TRIGGER full_disk BEFORE INSERT ON {t} EXECUTE FUNCTION {t}_full()"
    )
    with pytest.raises(Exception, match="no room"):
        to_table()
    trade.psql("DROP TRIGGER full_disk ON {t}")
    assert to_table() == "1 messages done, 0 of them refused"


def test_a_table_that_is_not_there_is_made(trade):
    trade.orders(["a", "b"])
    arguments = ("--to", "jdbc", "--table", trade.table, "--checkpoint", trade.folder / "c")
    trade.export(*arguments, "--select", "content, dueTime AS due", "--where", "content <> 'b'")
    assert trade.psql("SELECT content FROM {t} WHERE due < now()") == [["a"]]


def test_a_topic_goes_into_a_database_of_standard_sql(trade, monkeypatch):
    """By way of Derby, which comes with PySpark and in which a user is only a schema."""
    for name in ("RMQ_JDBC_USER", "RMQ_JDBC_PASSWORD"):
        monkeypatch.delenv(name)
    url = f"jdbc:derby:{trade.folder}/shop;create=true"
    trade.orders([order(1), order(2), order(2, "B"), order("x")])
    said = trade.export(
        *("--to", "jdbc", "--url", url, "--table", "orders", "--select", SELECT),
        *("--checkpoint", trade.folder / "checkpoint", "--exceptions", "refused"),
    )
    assert said == "4 messages done, 1 of them refused"

    def rows(table):
        return trade.spark.read.format("jdbc").option("url", url).option("dbtable", table).load()

    assert sorted(row.id for row in rows("orders").collect()) == [1, 2, 2]
    (refused,) = rows("refused").collect()
    assert order("x") == refused.CONTENT


@pytest.mark.parametrize(
    "form",
    ["parquet", *(pytest.param(form, marks=pytest.mark.long) for form in ("orc", "json", "csv"))],
)
def test_files_get_each_message_once_and_the_exceptions_beside_them(trade, form, monkeypatch):
    from rmq_spark.jobs.targets.base import SparkTarget

    path = trade.folder / "out"
    arguments = ("--to", form, "--path", path, "--checkpoint", trade.folder / "checkpoint")
    trade.orders([*(order(n) for n in range(50)), order("x")])
    write = SparkTarget.write

    def killed_after(*given):
        write(*given)
        raise Killed

    with monkeypatch.context() as patched:
        # As a kill after the files were written and before Spark knows of it.
        patched.setattr(SparkTarget, "write", killed_after)
        with pytest.raises(Exception, match="Killed"):
            trade.export(*arguments, "--select", SELECT)
    assert trade.export(*arguments, "--select", SELECT) == "51 messages done, 1 of them refused"
    trade.orders([order(50)])
    trade.export(*arguments, "--select", SELECT)
    found = trade.spark.read.schema("id INT, sku STRING").format(form).load(str(path))
    assert sorted(row.id for row in found.collect()) == list(range(51))
    (refused,) = trade.spark.read.parquet(f"{path}_exceptions").collect()
    assert (refused.content, refused.topic) == (order("x"), "Orders")


def test_a_message_that_a_better_select_takes_leaves_the_exceptions(trade, monkeypatch):
    """Failed before: after a kill before the rows, it was in the files and in the exceptions."""
    from rmq_spark.jobs.targets import base

    path = trade.folder / "out"
    arguments = ("--to", "parquet", "--path", path, "--checkpoint", trade.folder / "checkpoint")
    trade.orders([order(1), order("x")])
    note = base.note_in_folder

    def killed_after(batch, refused, folder):
        note(batch, refused, folder)
        if refused:
            raise Killed

    def before_the_rows(batch, refused, folder):
        """Failed before: after a kill behind the rows, a target that has them does no more."""
        assert list(path.glob(f"rmq_batch={batch.name}/*.parquet")) == []
        note(batch, refused, folder)

    with monkeypatch.context() as patched:
        patched.setattr(base, "note_in_folder", killed_after)
        with pytest.raises(Exception, match="Killed"):
            trade.export(*arguments, "--select", SELECT)
    assert len(list((trade.folder / "out_exceptions").glob("rmq_batch=*"))) == 1
    monkeypatch.setattr(base, "note_in_folder", before_the_rows)
    better = "get_json_object(content, '$.id') AS id"
    assert trade.export(*arguments, "--select", better) == "2 messages done, 0 of them refused"
    assert list((trade.folder / "out_exceptions").glob("rmq_batch=*")) == []


@pytest.mark.long
def test_the_search_for_refused_messages_is_not_in_the_log(trade):
    """Failed before: 2000 lines of stack traces for 3 refused messages, then the exit code 0."""
    trade.orders([*map(order, range(64)), order("x")])
    arguments = (
        *("--topic", "Orders", "--once", "--checkpoint", str(trade.folder / "checkpoint")),
        *("--to", "parquet", "--path", str(trade.folder / "out"), "--select", SELECT),
    )
    done = subprocess.run(
        [sys.executable, "-m", "rmq_spark.cli", "job", "export", *trade.redis, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "65 messages done, 1 of them refused" in done.stdout + done.stderr
    assert "errors that Spark has logged for this do not end the job" in done.stderr
    assert "java.lang" in done.stderr  # of the write itself
    assert "NoopBatchWrite" not in done.stderr
    assert not re.search(r"^[/\d]+ [:\d]+ INFO ", done.stderr, re.MULTILINE)  # of Spark


@pytest.mark.long
def test_errors_of_sql_are_told_by_pyspark_after_a_search_too(trade, monkeypatch):
    """Failed before: a TypeError of PySpark's log, which a search had created as a plain one."""
    monkeypatch.delitem(logging.root.manager.loggerDict, "SQLQueryContextLogger", raising=False)
    raising = "if(content = 'x', raise_error('no'), content) AS id"
    for number, select in enumerate([raising, SELECT]):
        trade.orders([order(1), "x" if select == raising else order("x")])
        place = (
            "--path",
            trade.folder / f"out{number}",
            "--checkpoint",
            trade.folder / f"c{number}",
        )
        done = trade.export("--to", "parquet", *place, "--select", select)
        assert done == "2 messages done, 1 of them refused"


@pytest.mark.long
def test_contents_may_stay_bytes(trade):
    trade.orders([b"\xff", b"a"])
    path = trade.folder / "out"
    trade.export("--to", "parquet", "--path", path, "--checkpoint", trade.folder / "c", "--binary")
    assert sorted(bytes(row.content) for row in trade.spark.read.parquet(str(path)).collect()) == [
        b"a",
        b"\xff",
    ]


def test_another_format_is_said_to_be_untested(trade, caplog):
    trade.orders(["a"])
    trade.export("--to", "noop", "--checkpoint", trade.folder / "checkpoint")
    assert "The format noop is not tested with rmq-spark" in logged(caplog)
    assert trade.broker.queue("Orders").figures().messages == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "jdbc"), "needs --table"),
        (("--to", "parquet"), "needs --path"),
        (("--to", "jdbc", "--table", 'a"b'), "letters, digits and underscores"),
        (
            ("--to", "jdbc", "--table", "t", "--url", "jdbc:nothing:x"),
            "no JDBC driver for jdbc:nothing",
        ),
        (
            ("--to", "jdbc", "--table", "t", "--url", "jdbc:mysql://h/x"),
            "--conf spark.jars.packages=com.mysql:mysql-connector-j:",
        ),
        (
            (
                *("--to", "jdbc", "--table", "t", "--url", "jdbc:mariadb://h/x?a=b"),
                *("--target-option", "driver=org.mariadb.jdbc.Nothing"),
            ),
            "for jdbc:mariadb://h/x .* --conf spark.jars.packages=org.mariadb.jdbc:mariadb-java-",
        ),
    ],
)
def test_what_is_missing_is_told(trade, arguments, told):
    trade.orders(["a"])
    with pytest.raises(Exception, match=told):
        trade.export(*arguments, "--checkpoint", trade.folder / "checkpoint")


def test_keys_headers_and_expiry_are_exported(trade):
    trade.broker.create("Orders", "FixedTime", 2, keyed=True)
    headers = [("source", "web"), ("id", b"\xff"), ("none", None)]
    ends = 4_102_444_800_000
    trade.orders([Message("paid", key="a", headers=headers, expires_at=ends), Message(key="b")])
    target = ("--to", "csv", "--target-option", "header=true", "--path", trade.folder / "out")
    select = ("--select", "key, content, headers, unix_millis(expiresAt) AS ends")
    done = trade.export(*target, "--checkpoint", trade.folder / "mark", "--headers", *select)
    assert done == "2 messages done, 0 of them refused"
    read = trade.spark.read.options(header="true", escape="\\").csv(str(trade.folder / "out"))
    a, b = sorted(read.collect(), key=lambda row: row.key)
    assert (a.key, a.content, a.ends) == ("a", "paid", str(ends))
    assert json.loads(a.headers) == [
        {"key": "source", "value": "web"},
        {"key": "id", "valueBase64": "/w=="},
        {"key": "none"},
    ]
    assert (b.key, b.content, b.headers, b.ends) == ("b", None, None, None)


def test_a_refused_message_of_a_keyed_topic_is_found_by_its_key(trade):
    trade.broker.create("Orders", "FixedTime", 2, keyed=True)
    trade.orders([Message("1", key="a"), Message("x", key="b"), Message("2", key=b"\xff")])
    target = ("--to", "parquet", "--path", trade.folder / "out")
    shape = ("--checkpoint", trade.folder / "mark", "--select", "key, CAST(content AS INT) AS n")
    assert trade.export(*target, *shape) == "3 messages done, 2 of them refused"
    rows = trade.spark.read.parquet(f"{trade.folder}/out_exceptions").collect()
    found = {row.origin.partition(" key ")[2]: row.content for row in rows}
    assert found == {"b": "x", "FF": "2"}
