"""Where a demo takes place: which Redis, which Spark, and what happens to them meanwhile."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from rmq_spark.client import Broker, Queue, connect
from rmq_spark.local.redis import LocalRedis

# A Redis that is gone is not waited for as a service would.
PATIENCE_S = 3.0


@dataclass(frozen=True)
class Place:
    """connection: the options of sources and sinks; reading: those that only sources have.

    spark: settings of the session. patience_s: as connect has it. meanwhile: given the queue whose
    messages fall due over a while, what goes on beside.
    """

    connection: Mapping[str, str]
    reading: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    patience_s: float | None = PATIENCE_S
    meanwhile: Callable[[Queue], AbstractContextManager[object]] = nullcontext

    def connect(self, key_prefix: str) -> Broker:
        """A connection with these options. Raises ServerError."""
        options = {name.removeprefix("redis."): value for name, value in self.connection.items()}
        return connect(**options, key_prefix=key_prefix, patience_s=self.patience_s)


@contextmanager
def one_redis(url: str | None) -> Iterator[Place]:
    """The Redis named, else one started for the run, and a Spark of two cores."""
    if url is not None:
        yield Place({"redis.url": url})
        return
    with LocalRedis() as redis:
        yield Place({"redis.url": redis.url})
