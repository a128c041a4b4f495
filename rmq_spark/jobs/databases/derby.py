"""The dialect of Derby, which comes with PySpark."""

from collections.abc import Mapping

from rmq_spark.jobs.databases.dialect import Dialect


class Derby(Dialect):
    """An embedded Derby."""

    drivers: Mapping[str, str] = {"jdbc:derby:": ""}  # Spark finds it without its name

    @classmethod
    def has_users(cls) -> bool:
        """Check whether the database has users. In an embedded Derby, a user is only a schema."""
        return False
