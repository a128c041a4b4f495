"""The dialect of PostgreSQL."""

from collections.abc import Mapping

from rmq_spark.jobs.databases.dialect import Dialect

_DRIVER = "org.postgresql.Driver"
_RAISED = "P0001"  # RAISE in a trigger


class PostgreSQL(Dialect):
    """PostgreSQL."""

    drivers: Mapping[str, str] = {"jdbc:postgresql:": _DRIVER}
    packages: Mapping[str, str] = {_DRIVER: "org.postgresql:postgresql:42.7.7"}

    @classmethod
    def is_fault_of_row(cls, state: str, code: int = 0) -> bool:
        """Check whether an error means that a row can never be stored. See Dialect."""
        return state == _RAISED or super().is_fault_of_row(state, code)

    def storable_text(self, text: str | None) -> str | None:
        """Escape U+0000, the only character that PostgreSQL cannot store."""
        return text and text.replace("\0", "\\u0000")
