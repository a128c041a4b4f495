"""What the dialects of databases say, without a server."""

import pytest

from rmq_spark.jobs.databases.database import jdbc_options
from rmq_spark.jobs.databases.derby import Derby
from rmq_spark.jobs.databases.dialect import Dialect
from rmq_spark.jobs.databases.known_dialects import dialect_of
from rmq_spark.jobs.databases.mariadb import MariaDB
from rmq_spark.jobs.databases.postgresql import PostgreSQL

OF_MARIADB = "org.mariadb.jdbc.Driver"


def spark_type(name):
    return f"spark {name}"


@pytest.mark.parametrize(
    ("url", "dialect", "options"),
    [
        ("jdbc:postgresql://h/x", PostgreSQL, {"driver": "org.postgresql.Driver"}),
        ("jdbc:mysql://h/x", MariaDB, {"driver": "com.mysql.cj.jdbc.Driver"}),
        (
            "jdbc:mariadb://h/x",
            MariaDB,
            {"driver": OF_MARIADB, "url": "jdbc:mysql://h/x?permitMysqlScheme=true"},
        ),
        (
            "jdbc:mariadb://h/x?a=b",
            MariaDB,
            {"driver": OF_MARIADB, "url": "jdbc:mysql://h/x?a=b&permitMysqlScheme=true"},
        ),
        ("jdbc:derby:x;create=true", Derby, {}),
        ("jdbc:h2:x", Dialect, {}),
    ],
)
def test_the_url_chooses_dialect_and_driver(monkeypatch, url, dialect, options):
    monkeypatch.setenv("RMQ_JDBC_PASSWORD", "secret")
    assert dialect_of(url) is dialect
    found = jdbc_options({"url": url})
    login = {"password": "secret"} if dialect.has_users() else {}
    assert {name: found[name] for name in found if name != "user"} == {
        **{"url": url, **options},
        **login,
    }
    assert dialect.given_url(found["url"]) == url


def test_a_driver_that_is_named_stays():
    given = {"url": "jdbc:mysql://h/x", "Driver": OF_MARIADB}
    assert "driver" not in jdbc_options(given)


# MariaDB by its own driver; the codes of MySQL are in its manual.
@pytest.mark.parametrize(
    ("dialect", "state", "code", "is_fault"),
    [
        (MariaDB, "23000", 1062, True),  # duplicate key
        (MariaDB, "23000", 1052, False),  # ambiguous column
        (MariaDB, "01000", 1265, True),  # no such value of an ENUM
        (MariaDB, "HY000", 3819, True),  # CHECK of MySQL
        (MariaDB, "HY000", 1906, False),  # a value for a generated column
        (MariaDB, "HY000", 1205, False),  # lock wait timeout
        (MariaDB, "40001", 1213, False),  # deadlock
        (MariaDB, "45000", 1644, True),  # SIGNAL
        (PostgreSQL, "P0001", 0, True),  # RAISE
        (PostgreSQL, "40P01", 0, False),  # deadlock
        (Derby, "44000", 0, True),  # check option
        (Dialect, "42S02", 0, False),  # no such table
    ],
)
def test_only_faults_of_a_row_refuse_it(dialect, state, code, is_fault):
    assert dialect.is_fault_of_row(state, code) is is_fault


def test_types_are_those_of_spark_unless_a_database_has_better_ones():
    assert PostgreSQL(spark_type).text_type == "spark string"
    assert MariaDB(spark_type).text_type == "LONGTEXT"
    assert MariaDB(spark_type).type_of("int") == "spark int"


def test_only_postgresql_cannot_store_u0000():
    assert PostgreSQL(spark_type).storable_text("a\0") == "a\\u0000"
    assert MariaDB(spark_type).storable_text("a\0") == "a\0"
    assert PostgreSQL(spark_type).storable_text(None) is None
