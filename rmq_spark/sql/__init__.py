"""SQL databases, by the drivers of Python for an outbox and by JDBC for the jobs.

Read database first: it says what every connection does, and in what databases differ. postgresql
and mariadb hold all that is special about one database. jdbc reaches any database that Spark
reaches.
"""

from rmq_spark.errors import InvalidOption
from rmq_spark.sql.database import Database, Dialect, scheme_of
from rmq_spark.sql.mariadb import MariaDb
from rmq_spark.sql.postgresql import PostgreSql

_KNOWN: tuple[type[Database], ...] = (PostgreSql, MariaDb)


def dialect_of(url: str) -> Dialect:
    return next((one.dialect for one in _KNOWN if scheme_of(url) in one.schemes), Dialect())


def database_of(url: str, user: str | None = None, password: str | None = None) -> Database:
    """Return the database that a url names. Raises InvalidOption for another kind of database.

    url: such as ``postgresql://host:5432/shop`` or ``mariadb://host/shop``; ``jdbc:`` before it is
    ignored. user, password: those in the url take precedence.
    """
    plain = url.removeprefix("jdbc:")
    for kind in _KNOWN:
        if plain.partition("://")[0] in kind.schemes:
            return kind(plain, user, password)
    schemes = ", ".join(f"{scheme}://" for kind in _KNOWN for scheme in kind.schemes)
    raise InvalidOption(
        f"The url of an outbox begins with {scheme_of(url)[:20]!r}. Accepted: {schemes}.",
        name="url",
    )
