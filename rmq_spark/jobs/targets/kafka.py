"""Topics of Kafka: the target kafka of an export, and what a stream from Kafka shares with it."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import IntegerType, StringType

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import KAFKA, JobFailed
from rmq_spark.jobs.spark_session import Folder, check_connector, java_causes
from rmq_spark.jobs.targets.base import (
    NUMBER,
    ExportBatch,
    Place,
    Target,
    note_in_folder,
    refused_by_shape,
)
from rmq_spark.jobs.targets.records import ID, TEXT, Columns, check_columns, records
from rmq_spark.spark.schemas import HEADERS

# Those that Spark's Kafka sink accepts.
_COLUMNS: Columns = {
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "key": TEXT,
    "value": TEXT,
    "headers": (HEADERS,),
}
_ACCEPTED = (
    "value and key (STRING or BINARY), headers, partition (INT) and topic (STRING), such as "
    "--select 'content AS value, slot::STRING AS key'. topic may be an option instead."
)
PREFIX = "kafka."
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
# How long brokers may take to answer when a job begins, in ms, unless the options differ.
_ANSWERS_MS = "15000"
_UNKNOWN = "UnknownTopicOrPartitionException"
_SECRET = re.compile(r"password|secret|jaas|credential|token|ssl\.key|\.key$|\.config$", re.I)
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']")
# What to do, by the names of errors in the Java client and in librdkafka.
_TOO_LARGE = (
    "Raise kafka.max.request.size (with --exactly-once kafka.message.max.bytes) and the topic's "
    'max.message.bytes, or refuse large messages with --select "IF(octet_length(content) > 900000, '
    "raise_error('too large'), content) AS value\", which puts them into the exceptions."
)
_SILENT = "Check that the brokers run and that kafka.bootstrap.servers names them."
_FENCED = (
    "Another export runs with the same checkpoint: give each its own. Or the batch took longer "
    "than kafka.transaction.timeout.ms: raise it, or lower maxRecordsPerTrigger."
)
_REMEDIES = {
    "RecordTooLargeException": _TOO_LARGE,
    "MSG_SIZE_TOO_LARGE": _TOO_LARGE,
    "TimeoutException": _SILENT,
    "_ALL_BROKERS_DOWN": _SILENT,
    "_MSG_TIMED_OUT": _SILENT,
    "_RESOLVE": _SILENT,
    "_TIMED_OUT": _SILENT,
    "_TRANSPORT": _SILENT,
    "_FENCED": _FENCED,
    "INVALID_PRODUCER_EPOCH": _FENCED,
    "PRODUCER_FENCED": _FENCED,
}


def _unfinished_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of the batch that a query will replay, or None.

    An earlier run has planned it, and Spark has not noted its end.
    """
    folder = Folder(spark, checkpoint)
    planned, ended = (
        max((int(name) for name in folder.files(log) if name.isdigit()), default=None)
        for log in ("offsets", "commits")
    )
    return planned if planned != ended else None


class KafkaTarget(Target):
    """Topics of Kafka: by Spark's connector at least once, or each batch once.

    The connector writes by all tasks at the same time; a batch that is replayed is written again,
    with the same ids. Only the transformation refuses messages; it is tried before anything is
    written.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._writer: KafkaTransactions | KafkaCluster
        if place.given.exactly_once:
            self._writer = KafkaTransactions(
                place.options, _unfinished_batch(place.spark, place.given.checkpoint)
            )
        else:
            self._writer = KafkaCluster(place.spark, place.options)
            self._writer.check_target(place.options.get("topic"))
        needed = ["value", *([] if "topic" in place.options else ["topic"])]
        self._required = needed if place.given.select else None

    def write(self, batch: ExportBatch) -> int:
        if isinstance(self._writer, KafkaTransactions) and self._writer.has(batch):
            return 0
        refused = refused_by_shape(batch)
        # Before the records: with them, the batch may be done, and then it is not written again.
        note_in_folder(batch, refused, self.place.exceptions)
        self._writer.write(batch, kafka_records(batch, batch.without(refused), self._required))
        return len(refused)


def kafka_records(
    batch: ExportBatch, messages: DataFrame, required: Sequence[str] | None
) -> DataFrame:
    """Turn messages of a batch into records: topic, partition, key, value, headers and NUMBER.

    required: the columns that --select must make; None without --select: then the value is the
    content, and the key is that of the message, or else its slot.
    """
    rows = batch.shape(messages)
    if required is None:
        slot = sql.col("slot").cast("string").cast("binary")
        key = sql.coalesce(sql.col("key").cast("binary"), slot)
        rows = rows.withColumns({"key": key, "value": sql.col("content")})
    else:
        check_columns(rows, _COLUMNS, required, "No Kafka record", _ACCEPTED)
    ids = sql.array(
        *(
            sql.struct(
                sql.lit(name).alias("key"), sql.col(f"`{name}`").cast("binary").alias("value")
            )
            for name in ID
        )
    )
    headers = sql.coalesce(sql.col("headers"), sql.array().cast(HEADERS))
    rows = records(batch, rows, _COLUMNS)
    rows = rows.withColumn("headers", sql.concat(headers, ids.cast(HEADERS)))
    return rows.select(NUMBER, *_COLUMNS)


# -- by Spark's connector


class KafkaCluster:
    """A cluster that Spark's connector reaches. options: of Spark's format kafka."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        check_connector(spark, KAFKA)
        if not address_of(options):
            raise InvalidOption(
                "Kafka has no address. Accepted: the option kafka.bootstrap.servers=HOST:PORT."
            )
        self._jvm: Any = spark._jvm
        self._options = dict(options)
        self._settings = settings_of(options)

    def check_target(self, topic: str | None) -> None:
        """Check that brokers answer, and have a topic or create it; None: records name topics."""
        for missing in self._missing([] if topic is None else [topic]):
            with self.explained():
                self._ask_for(missing)

    def write(self, _: ExportBatch, rows: DataFrame) -> None:
        with self.explained():
            rows.drop(NUMBER).write.format(KAFKA).options(**self._options).save()

    def check_source(self) -> None:
        given = {name.lower(): value for name, value in self._options.items()}
        topics = [name.strip() for name in given.get("subscribe", "").split(",")]
        for missing in self._missing([name for name in topics if name]):
            raise no_such_topic(missing, self._options)

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            of_kafka = [one for one in java_causes(error) if "kafka" in one.getClass().getName()]
            if not of_kafka:
                raise
            cause = of_kafka[-1]
            raise failure(_name(cause), str(cause.getMessage()), self._options) from None

    def _missing(self, topics: list[str]) -> list[str]:
        patience = {"default.api.timeout.ms": _ANSWERS_MS, "request.timeout.ms": "5000"}
        with self.explained():
            admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(
                patience | self._settings
            )
            try:
                admin.describeCluster().nodes().get()
                return [topic for topic in topics if not _has(admin, topic)]
            finally:
                admin.close(self._jvm.java.time.Duration.ZERO)

    def _ask_for(self, topic: str) -> None:
        """Ask for a topic as a producer does: brokers that create topics then create it."""
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        serializers = {"key.serializer": serializer, "value.serializer": serializer}
        patience = {"max.block.ms": _ANSWERS_MS}
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            patience | self._settings | serializers
        )
        try:
            producer.partitionsFor(topic)
        except Py4JJavaError as error:
            if _name(java_causes(error)[-1]) in ("TimeoutException", _UNKNOWN):
                raise no_such_topic(topic, self._options) from error
            raise
        finally:
            producer.close(self._jvm.java.time.Duration.ZERO)


def _has(admin: Any, topic: str) -> bool:
    try:
        admin.describeTopics([topic]).allTopicNames().get()
    except Py4JJavaError as error:
        if _name(java_causes(error)[-1]) == _UNKNOWN:
            return False
        raise
    return True


def _name(java: Any) -> str:
    return str(java.getClass().getSimpleName())


# -- exactly once


class KafkaTransactions:
    """A producer on the driver that writes each batch once, in a transaction.

    The number of the last batch is an offset of a consumer group that no consumer uses. Kafka
    commits it with the records of the batch::

        init_transactions              ends what an earlier producer has begun, and fences it off
        read the group                 the batch is there already: skip it
        begin_transaction
        produce                        the records, in their order
        send_offsets_to_transaction    the number of the batch
        commit_transaction

    An export that is killed before the commit has written nothing that a consumer of committed
    records sees. After the commit all of the batch is there, and its replay is skipped.
    The ids of the group and of the transactions contain the id of the query. So of two exports with
    one checkpoint, one can commit nothing once the other has begun a batch.

    Each batch has a producer of its own. A request to commit that comes late, because its
    connection broke and it was repeated, is then from a producer that was fenced off. Of the same
    producer, it would commit the part of the next batch that is in Kafka by then.

    unfinished: the number of the batch that an earlier run has begun and Spark will replay; None if
    there is none.
    """

    def __init__(self, options: Mapping[str, str], unfinished: int | None) -> None:
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
        """Check whether the batch is in Kafka, and fence off the producers before."""
        with self._explained():
            self._begin(f"{GROUP}{batch.query}")
        if self._last is None or self._last < batch.batch - 1:
            self._check_gap(batch)
            return False
        return self._last >= batch.batch

    def write(self, batch: ExportBatch, rows: DataFrame) -> None:
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


# -- errors, in one line, with the remedy and without secrets


def failure(name: str, text: str, options: Mapping[str, str]) -> JobFailed:
    said = text.rstrip(".")
    remedy = _REMEDIES.get(name, "")
    told = (
        f"Kafka at {address_of(options)} failed: {hidden(said, options)} ({name}).",
        remedy,
        "No message is lost: start the job again.",
    )
    return JobFailed(" ".join(filter(None, told)))


def no_such_topic(topic: str, options: Mapping[str, str]) -> JobFailed:
    return JobFailed(
        f"Kafka at {address_of(options)} has no topic {topic}, and does not create it. Create it, "
        f"such as with kafka-topics.sh --create --topic {topic}, or correct its name. No message "
        "is lost: start the job again."
    )


def unfinished_transaction(group: str, options: Mapping[str, str]) -> JobFailed:
    return JobFailed(
        f"Kafka at {address_of(options)} has a transaction that does not end, and keeps back the "
        f"offset of the group {group} until then. If no other program uses this group, a broker "
        "that was killed has lost the end of the transaction: abort it with kafka-transactions.sh "
        "on all partitions (docs/jobs.md, A transaction without an end). No message is lost: then "
        "start the job again."
    )


def settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Kafka client: of each option kafka.NAME, NAME and its value."""
    return {
        name[len(PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }


def address_of(options: Mapping[str, str]) -> str:
    return settings_of(options).get("bootstrap.servers", "")


def hidden(text: str, options: Mapping[str, str]) -> str:
    """Return a text in one line, in which *** stands for the values of secret options.

    Quoted parts of such a value, such as the password in sasl.jaas.config, are hidden as well.
    """
    secrets = {value for name, value in options.items() if _SECRET.search(name)}
    secrets |= {part for value in secrets for part in _QUOTED.findall(value)}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(text.split())
