"""Batches to Kafka, each exactly once, in a transaction of a producer on the driver.

The number of the last batch is an offset of a consumer group that no consumer uses. Kafka commits
it with the records of the batch::

    init_transactions              ends what an earlier producer has begun, and fences it off
    read the group                 the batch is there already: skip it
    begin_transaction
    produce                        the records, in their order
    send_offsets_to_transaction    the number of the batch
    commit_transaction

An export that is killed before the commit has written nothing that a consumer of committed records
sees. After the commit all of the batch is there, and its replay is skipped.
The ids of the group and of the transactions contain the id of the query. So of two exports with one
checkpoint, one can commit nothing once the other has begun a batch.

Each batch has a producer of its own. A request to commit that comes late, because its connection
broke and it was repeated, is then from a producer that was fenced off. Of the same producer, it
would commit the part of the next batch that is in Kafka by then.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from pyspark.sql import DataFrame

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.kafka.kafka_errors import (
    PREFIX,
    address_of,
    failure,
    hidden,
    no_such_topic,
    settings_of,
    unfinished_transaction,
)
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.targets.target import ExportBatch

GROUP = "rmq-export-"
# Seconds that brokers may take to answer.
_ANSWERS_S = 15.0
# Seconds after which a call that does not keep this timeout is given up.
_HANGS_S = 60.0
# How often a call is made that may be repeated, and the seconds between two of them.
_TRIES, _PAUSE_S = 20, 0.5
# Errors that pass, although librdkafka does not call them retriable.
_COORDINATOR_MOVES = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "UNSTABLE_OFFSET_COMMIT",
)
_QUIET = {"log_level": "2"}  # it logs each attempt to connect
_DEFAULTS: dict[str, Any] = {
    # Equal keys go to the partition to which Spark's connector and Java bring them.
    "partitioner": "murmur2_random",
    "transaction.timeout.ms": "300000",
    "delivery.report.only.error": True,
    **_QUIET,
}


class KafkaTransactions:
    """A producer on the driver that writes each batch once.

    unfinished: the number of the batch that an earlier run has begun and Spark will replay; None if
    there is none.
    """

    def __init__(self, options: Mapping[str, str], unfinished: int | None) -> None:
        """Check the options. Raises InvalidOption, and JobFailed without confluent-kafka."""
        try:
            import confluent_kafka
        except ImportError as error:
            raise JobFailed(
                "--exactly-once needs the package confluent-kafka: pip install 'rmq-spark[kafka]'."
            ) from error
        self._kafka: Any = confluent_kafka
        self._options = dict(options)
        if not address_of(options) or "topic" not in options:
            raise InvalidOption(
                "--exactly-once needs --target-option kafka.bootstrap.servers=HOST:PORT and "
                "--target-option topic=NAME."
            )
        for name in ("transactional.id", "enable.idempotence"):
            if name in settings_of(options):
                raise InvalidOption(f"{PREFIX}{name} is not accepted: --exactly-once sets it.")
        self._topic = options["topic"]
        self._unfinished = unfinished
        self._producer: Any = None
        self._group: Any = None
        self._last: int | None = None
        self._undelivered: Any = None
        self._check()

    def has(self, batch: ExportBatch) -> bool:
        """Check whether the batch is in Kafka, and fence off the producers before.

        Raises JobFailed.
        """
        with self._explained():
            self._begin(f"{GROUP}{batch.query}")
        if self._last is None or self._last < batch.batch - 1:
            self._check_gap(batch)
            return False
        return self._last >= batch.batch

    def write(self, batch: ExportBatch, rows: DataFrame) -> None:
        """Write the records of a batch, and its number. Raises JobFailed."""
        with self._explained():
            self._producer.begin_transaction()
            try:
                for row in rows.toLocalIterator(prefetchPartitions=True):
                    self._produce(row)
                noted = self._kafka.TopicPartition(
                    self._topic, 0, batch.batch, metadata=f"batch {batch.batch} of rmq-spark"
                )
                send = self._producer.send_offsets_to_transaction
                self._repeated(lambda: _kept_waiting(send, [noted], self._group))
                self._repeated(self._producer.commit_transaction)
            except BaseException:
                self._abort()
                raise

    def _check(self) -> None:
        """Check that the cluster answers, and has the topic or creates it. Raises JobFailed."""
        with self._explained():
            producer = self._client(self._kafka.Producer, _DEFAULTS, {})
            for _ in range(_TRIES):
                there = producer.list_topics(self._topic, timeout=_ANSWERS_S)
                if there.topics[self._topic].error is None:
                    return
                producer.poll(_PAUSE_S)  # it may be in creation
        raise no_such_topic(self._topic, self._options)

    def _begin(self, name: str) -> None:
        """End what producers before have begun, and read the number of the last batch."""
        transactional = {"transactional.id": name, "on_delivery": self._note_undelivered}
        self._producer = self._client(self._kafka.Producer, _DEFAULTS, transactional)
        self._repeated(lambda: _kept_waiting(self._producer.init_transactions))
        with self._reader(name, "read_committed") as reader:
            try:
                offset = self._repeated(lambda: self._committed(reader))
            except self._kafka.KafkaException as error:
                if error.args[0].name() == "_TIMED_OUT" and self._is_held_back(name):
                    raise unfinished_transaction(name, self._options) from None
                raise
            self._last = offset if offset >= 0 else None
            self._group = reader.consumer_group_metadata()

    def _is_held_back(self, name: str) -> bool:
        """Check whether Kafka answers, and only an open transaction holds the offset back."""
        with self._reader(name, "read_uncommitted") as reader:
            try:
                self._committed(reader)
            except self._kafka.KafkaException:
                return False
            return True

    @contextmanager
    def _reader(self, name: str, isolation: str) -> Iterator[Any]:
        """Open a reader of a group's offset.

        isolation: Kafka's name of the level. If it is that of committed reads, Kafka answers only
        when no transaction of the group is open.
        """
        group = {"group.id": name, "isolation.level": isolation}
        reader = self._client(self._kafka.Consumer, _QUIET, group)
        try:
            yield reader
        finally:
            reader.close()

    def _committed(self, reader: Any) -> int:
        """Return the offset that the group holds; below 0 if it holds none."""
        asked = [self._kafka.TopicPartition(self._topic, 0)]
        (found,) = reader.committed(asked, timeout=_ANSWERS_S)
        if found.error is not None:
            raise self._kafka.KafkaException(found.error)
        return int(found.offset)

    def _check_gap(self, batch: ExportBatch) -> None:
        """Raise JobFailed if a batch is replayed, and it is not known whether it was written."""
        if batch.batch and batch.batch == self._unfinished:
            raise JobFailed(
                f"It is not known whether batch {batch.batch} is in the Kafka topic {self._topic}: "
                f"the group {GROUP}{batch.query} does not hold the number of the batch before. The "
                "last run was without --exactly-once, or Kafka has forgotten the group "
                "(offsets.retention.minutes). Run the export with --once and without "
                "--exactly-once; consumers can drop repeats by the headers rmq-*. Then start it "
                "again."
            )

    def _client(
        self,
        kind: Callable[[dict[str, Any]], Any],
        defaults: Mapping[str, Any],
        fixed: Mapping[str, Any],
    ) -> Any:
        """Make a producer or consumer. Raises InvalidOption for an option that it refuses.

        defaults: settings that the options may change. fixed: settings that they may not.
        """
        try:
            return kind({**defaults, **settings_of(self._options), **fixed})
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            why = error.args[0]
            text = hidden(why if isinstance(why, str) else why.str(), self._options)
            raise InvalidOption(
                f"An option {PREFIX}* is not accepted: {text}. With --exactly-once, they are those "
                "of librdkafka, such as kafka.sasl.username and kafka.sasl.password instead of "
                "kafka.sasl.jaas.config."
            ) from None

    def _produce(self, row: Any) -> None:
        """Hand over a record, as soon as there is room for it."""
        headers = [(header.key, _bytes(header.value)) for header in row.headers]
        partition = -1 if row.partition is None else row.partition
        while True:
            try:
                self._producer.produce(
                    self._topic, _bytes(row.value), _bytes(row.key), partition, headers=headers
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _note_undelivered(self, error: Any, _: Any) -> None:
        # The others are those that an abort removes.
        if error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            self._undelivered = self._undelivered or error

    def _repeated(self, call: Callable[[], Any]) -> Any:
        """Make a call, again while Kafka says that it may be repeated."""
        for _ in range(_TRIES - 1):
            try:
                return call()
            except self._kafka.KafkaException as error:
                why = error.args[0]
                if not why.retriable() and why.name() not in _COORDINATOR_MOVES:
                    raise
            time.sleep(_PAUSE_S)
        return call()

    def _abort(self) -> None:
        """Try to abort, so that consumers need not wait until the transaction expires."""
        with suppress(self._kafka.KafkaException, JobFailed):
            _kept_waiting(self._producer.abort_transaction)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise JobFailed in place of an error of Kafka; others pass."""
        try:
            yield
        except self._kafka.KafkaException as error:
            why = self._undelivered or error.args[0]
            raise failure(why.name(), why.str(), self._options) from None


def _kept_waiting(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that takes a timeout, in a thread. Raises JobFailed if it does not return.

    librdkafka may wait for a coordinator without end, whatever the timeout.
    """
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call(*arguments, _ANSWERS_S))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name="rmq-kafka", daemon=True).start()
    try:
        return done.result(_HANGS_S)
    except TimeoutError:
        raise JobFailed(
            f"Kafka's client has not answered for {_HANGS_S:.0f} s. This can happen after brokers "
            "were started again. No message is lost: start the job again."
        ) from None


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
