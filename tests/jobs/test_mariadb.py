"""What is special about MariaDB as the target of an export."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rmq_spark.spark.failure_cause import cause
from rmq_spark.sql.jdbc import JdbcDatabase, jdbc_options

from ..waiting import wait_until
from .trade import order


@pytest.fixture
def database(mariadb_server):
    return mariadb_server


@pytest.mark.long
def test_what_the_table_or_the_transformation_refuses_goes_to_the_exceptions(trade):
    """Also where the server is not strict: the driver is."""
    trade.sql(
        "CREATE TABLE {t} (id INT PRIMARY KEY, word VARCHAR(3) CHARACTER SET latin1 CHECK "
        "(word <> 'BAD'), small TINYINT NOT NULL, kind ENUM('a', 'b'), day DATE) ENGINE=InnoDB"
    )
    trade.sql(
        "DELIMITER //\nCREATE TRIGGER {t}_room BEFORE INSERT ON {t} FOR EACH ROW IF NEW.id = 13 "
        "THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no room'; END IF//"
    )
    bad = {
        "1 a 1 a 2026-01-01": "SQLSTATE 23000: ",  # the key; 1 is there
        "20 BAD 1 a 2026-01-01": "SQLSTATE 23000: ",  # the check
        "21 a  a 2026-01-01": "SQLSTATE 23000: ",  # NOT NULL
        "13 a 1 a 2026-01-01": "SQLSTATE 45000: ",  # the trigger
        "22 long 1 a 2026-01-01": "SQLSTATE 22001: ",
        "23 \U0001f600 1 a 2026-01-01": "SQLSTATE 22007: ",  # not in latin1
        "24 a 300 a 2026-01-01": "SQLSTATE 22003: ",
        "25 a 1 c 2026-01-01": "SQLSTATE 01000: ",  # not in the ENUM
        "26 a 1 a 2026-13-01": "SQLSTATE 22007: ",
        "x a 1 a 2026-01-01": "SQLSTATE 22018: ",  # --select fails for it
    }
    good = [f"{number} a 1 a 2026-01-01" for number in range(1, 11)]
    trade.orders(good)
    select = (
        "CAST(split(content, ' ')[0] AS INT) AS id, split(content, ' ')[1] AS word, "
        "CAST(nullif(split(content, ' ')[2], '') AS INT) AS small, split(content, ' ')[3] AS kind, "
        "split(content, ' ')[4] AS day"
    )
    into = ("--to", "jdbc", "--table", trade.table, "--checkpoint", trade.folder / "c")
    trade.export(*into, "--select", select)
    trade.orders(bad)
    assert trade.export(*into, "--select", select) == "10 messages done, 10 of them refused"
    assert trade.count("SELECT count(*) FROM {t}") == 10
    found = dict(trade.sql("SELECT content, left(reason, 16) FROM {t}_exceptions"))
    assert found == bad


@pytest.mark.long
def test_tables_that_are_made_keep_every_character_and_every_byte(trade):
    """Also where the defaults of the server are MyISAM and latin1."""
    text = "\U0001f600 a\0c" + "\xe4" * 40_000
    trade.orders([text, text + "x"])
    trade.export(
        *("--to", "jdbc", "--table", trade.table, "--checkpoint", trade.folder / "c"),
        *("--select", "content, unhex(hex(content)) AS bytes, timestamp_millis(1123) AS at"),
        *("--where", "content NOT LIKE '%x' OR raise_error('x') IS NULL"),
    )
    made = text.encode().hex().upper()
    assert trade.sql("SELECT HEX(content), HEX(bytes), microsecond(at) FROM {t}") == [
        [made, made, "123000"]
    ]
    assert trade.sql("SELECT HEX(content) FROM {t}_exceptions") == [[made + "78"]]


@pytest.mark.long
def test_a_session_that_cuts_values_is_refused(trade, to_table):
    trade.orders([order(1), order(2, "LONG")])
    url = f"{trade.database.url}?sessionVariables=sql_mode="
    with pytest.raises(Exception, match="cuts values that do not fit") as failure:
        to_table("--url", f"{url}''")
    assert "?sessionVariables=sql_mode='STRICT_ALL_TABLES'" in cause(failure.value)
    told = to_table("--url", f"{url}'STRICT_ALL_TABLES'")
    assert told == "2 messages done, 1 of them refused"


def test_a_table_without_transactions_is_refused(trade, to_table):
    trade.orders([order(1)])
    trade.sql("ALTER TABLE {t} ENGINE=MyISAM")
    with pytest.raises(Exception, match="has the engine MyISAM") as failure:
        to_table()
    assert f"ALTER TABLE {trade.table} ENGINE=InnoDB" in cause(failure.value)
    trade.sql("ALTER TABLE {t} ENGINE=InnoDB")
    assert to_table() == "1 messages done, 0 of them refused"


def test_a_wrong_password_is_not_shown(trade, to_table, monkeypatch):
    trade.orders([order(1)])
    monkeypatch.setenv("RMQ_JDBC_PASSWORD", "wide sesame")
    with pytest.raises(Exception, match="Access denied for user 'shop'") as failure:
        to_table()
    assert "wide sesame" not in str(failure.value)


def test_a_deadlock_refuses_nothing(trade, to_table):
    trade.broker.create("Orders", "FixedTime", slot_amount=1)  # so that 1 comes before 2
    trade.orders([order(1), order(2)])
    database = JdbcDatabase(trade.spark, jdbc_options({"url": trade.database.url}))
    with ThreadPoolExecutor() as pool, database.connect() as other, other.transaction():
        # MariaDB ends the transaction that has changed less.
        other.run(f"INSERT INTO {trade.table} (id) SELECT seq FROM seq_100_to_999")
        other.run(f"INSERT INTO {trade.table} (id) VALUES (2)")

        def cross():
            wait_until(lambda: trade.count(trade.database.waiting), "the export waits for row 2")
            other.run(f"INSERT INTO {trade.table} (id) VALUES (1)")

        crossed = pool.submit(cross)
        with pytest.raises(Exception, match=r"The database ended the transaction: .+ Deadlock"):
            to_table()
        crossed.result()
        other.run(f"DELETE FROM {trade.table}")
    assert trade.count("SELECT count(*) FROM {t}_exceptions") == 0
    assert to_table() == "2 messages done, 0 of them refused"
