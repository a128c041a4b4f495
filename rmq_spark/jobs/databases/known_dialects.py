"""The dialects of the databases that are tested, and the choice of one by the url."""

from rmq_spark.jobs.databases.derby import Derby
from rmq_spark.jobs.databases.dialect import Dialect
from rmq_spark.jobs.databases.mariadb import MariaDB
from rmq_spark.jobs.databases.postgresql import PostgreSQL

_KNOWN = (PostgreSQL, MariaDB, Derby)


def dialect_of(url: str) -> type[Dialect]:
    """Return the dialect of the database that a url names; standard SQL if it is not known."""
    return next((known for known in _KNOWN if url.startswith(tuple(known.drivers))), Dialect)
