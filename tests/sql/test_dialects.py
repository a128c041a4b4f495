"""What the dialects of databases say, without a server."""

import pytest

from rmq_spark.sql import dialect_of
from rmq_spark.sql.database import Dialect
from rmq_spark.sql.jdbc import jdbc_options
from rmq_spark.sql.mariadb import MariaDbDialect
from rmq_spark.sql.postgresql import PostgreSqlDialect

OF_MARIADB = "org.mariadb.jdbc.Driver"


@pytest.mark.parametrize(
    ("url", "dialect", "options"),
    [
        ("jdbc:postgresql://h/x", PostgreSqlDialect, {"driver": "org.postgresql.Driver"}),
        ("jdbc:mysql://h/x", MariaDbDialect, {"driver": "com.mysql.cj.jdbc.Driver"}),
        (
            "jdbc:mariadb://h/x",
            MariaDbDialect,
            {"driver": OF_MARIADB, "url": "jdbc:mysql://h/x?permitMysqlScheme=true"},
        ),
        (
            "jdbc:mariadb://h/x?a=b",
            MariaDbDialect,
            {"driver": OF_MARIADB, "url": "jdbc:mysql://h/x?a=b&permitMysqlScheme=true"},
        ),
        ("jdbc:h2:x", Dialect, {}),
    ],
)
def test_the_url_chooses_dialect_and_driver(monkeypatch, url, dialect, options):
    monkeypatch.setenv("RMQ_JDBC_PASSWORD", "secret")
    assert type(dialect_of(url)) is dialect
    found = jdbc_options({"url": url})
    assert {name: found[name] for name in found if name != "user"} == {
        **{"url": url, **options},
        "password": "secret",
    }
    assert dialect_of(url).given_url(found["url"]) == url


def test_a_driver_that_is_named_stays():
    given = {"url": "jdbc:mysql://h/x", "Driver": OF_MARIADB}
    assert "driver" not in jdbc_options(given)


# MariaDB by its own driver; the codes of MySQL are in its manual.
@pytest.mark.parametrize(
    ("dialect", "state", "code", "is_fault"),
    [
        (MariaDbDialect, "23000", 1062, True),  # duplicate key
        (MariaDbDialect, "23000", 1052, False),  # ambiguous column
        (MariaDbDialect, "01000", 1265, True),  # no such value of an ENUM
        (MariaDbDialect, "HY000", 3819, True),  # CHECK of MySQL
        (MariaDbDialect, "HY000", 1906, False),  # a value for a generated column
        (MariaDbDialect, "HY000", 1205, False),  # lock wait timeout
        (MariaDbDialect, "40001", 1213, False),  # deadlock
        (MariaDbDialect, "45000", 1644, True),  # SIGNAL
        (PostgreSqlDialect, "P0001", 0, True),  # RAISE
        (PostgreSqlDialect, "40P01", 0, False),  # deadlock
        (Dialect, "44000", 0, True),  # check option
        (Dialect, "42S02", 0, False),  # no such table
    ],
)
def test_only_faults_of_a_row_refuse_it(dialect, state, code, is_fault):
    assert dialect().is_fault_of_row(state, code) is is_fault


def test_only_postgresql_cannot_store_u0000():
    assert PostgreSqlDialect().storable_text("a\0") == "a\\u0000"
    assert MariaDbDialect().storable_text("a\0") == "a\0"
    assert PostgreSqlDialect().storable_text(None) is None
