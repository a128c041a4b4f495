"""The databases that can hold an outbox: each one a file that says what differs.

Read sql_database first: it is what all of them share.
"""

from rmq_spark.errors import InvalidOption
from rmq_spark.outbox.databases.psycopg_database import PostgreSql
from rmq_spark.outbox.databases.pymysql_database import MariaDb
from rmq_spark.outbox.databases.sql_database import Database

_KINDS: tuple[type[Database], ...] = (PostgreSql, MariaDb)


def database_of(url: str, user: str | None = None, password: str | None = None) -> Database:
    """Return the database that a url names. Raises InvalidOption for another kind of database.

    url: such as ``postgresql://host:5432/shop`` or ``mariadb://host/shop``; ``jdbc:`` before it is
    ignored. user, password: those in the url take precedence.
    """
    plain = url.removeprefix("jdbc:")
    for kind in _KINDS:
        if plain.partition("://")[0] in kind.schemes:
            return kind(plain, user, password)
    schemes = ", ".join(f"{scheme}://" for kind in _KINDS for scheme in kind.schemes)
    begins = plain.partition(":")[0][:20]
    raise InvalidOption(
        f"The url of an outbox begins with {begins!r}. Accepted: {schemes}.", name="url"
    )
