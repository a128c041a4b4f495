"""A lock that only the process takes in which it was made, not a copy which that process forks."""

import os
from contextlib import AbstractContextManager
from typing import Any

from rmq_spark.errors import ConsumerMisused


class ProcessLock:
    """A lock of a consumer. A copy of the consumer would commit or give back what is not its own.

    lock: a reentrant lock. name: that of the consumer.
    """

    def __init__(self, lock: AbstractContextManager[Any], name: str) -> None:
        self._lock = lock
        self._name = name
        self._process = os.getpid()

    @property
    def is_copy(self) -> bool:
        """Whether this process is a copy of the one in which the lock was made."""
        return os.getpid() != self._process

    def __enter__(self) -> None:
        # Before the lock is taken: another thread may have held it when the process was forked.
        if self.is_copy:
            raise ConsumerMisused(
                f"The consumer {self._name} belongs to process {self._process}, and this is a copy "
                "of that process. Open a consumer with another name in each process."
            )
        self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)
