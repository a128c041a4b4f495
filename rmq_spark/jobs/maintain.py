"""The jobs that tend topics: ``requeue_dead``, ``expire`` and ``report``. Expire needs no Spark."""

import argparse
import uuid
from typing import TYPE_CHECKING, Any

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.client.repair import sweep
from rmq_spark.errors import RmqError, ScriptFailed, WrongKeyType
from rmq_spark.inspect.fields import count_text
from rmq_spark.inspect.figures import Row, look
from rmq_spark.jobs.program import (
    FILES,
    Job,
    JobFailed,
    add_options,
    add_place,
    add_topics,
    broker_of,
    place_options,
)
from rmq_spark.options import CONNECTION, ENDING_TIME, SINK, SINK_GROUP, SLOTS, STARTING_TIME
from rmq_spark.protocol.reading import COUNTERS
from rmq_spark.topics.parsing import time_at

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

REQUEUE_DEAD = """\
Requeue the dead messages of a topic, all of them or those that you choose.

They come back as first deliveries, due at once or when an option such as -o delay=10m says.
Choose messages with --where, --slots, --from and --until. It is safe to start the job again, or
twice at once: it requeues the messages that are still dead.
"""
EXPIRE = """\
Give back messages whose lease has ended, and delete dead ones past their retention.

It does so in all topics and consumer groups, or in those that --topics names.
A query or consumer that reads a topic gives messages back by itself, but it deletes no dead ones.
Run the job for topics that nobody reads, and for those with a deadRetention. It also forgets
consumers, and staged batches of senders, that were not seen for 30 days. It takes nothing from a
consumer that is alive.
"""
REPORT = """\
Append the figures of topics to a table, a row for each topic and consumer group.

A row shows what the queues hold now, and the counters since the topic was created. Run the job on
a schedule. Each run appends all of its rows or none. Read files as one table with
spark.read.parquet(path).
"""
_SEARCHED = (
    "key BINARY, content BINARY, topic STRING, slot INT, diedAt TIMESTAMP, consumer STRING, "
    "reason STRING"
)
_KEY, _CONTENT = "rmq_key", "rmq_content"
# The columns of counters whose names are other ones: dead is the number in the queue.
_RENAMED = {"rolledBack": "rolled_back", "dead": "died"}
SCHEMA = (
    "at TIMESTAMP, topic STRING, consumer_group STRING, due BIGINT, delayed BIGINT, "
    "prepared BIGINT, retry BIGINT, dead BIGINT, oldest_due TIMESTAMP, consumers INT, "
    + ", ".join(f"{_RENAMED.get(name, name)} BIGINT" for name in COUNTERS)
)


# -- requeue_dead


def add_chosen_dead(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="the topic (required)")
    parser.add_argument(
        "--group", help="the consumer group whose dead messages to requeue (default: default)"
    )
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="requeue messages that meet a condition on key, content, slot, diedAt, consumer and "
        "reason (default: all)",
    )
    parser.add_argument("--slots", help=SLOTS.plain_help)
    parser.add_argument("--from", dest="since", metavar="TIME", help=STARTING_TIME.plain_help)
    parser.add_argument("--until", metavar="TIME", help=ENDING_TIME.plain_help)
    add_options(parser, ["-o", "--option"], "an option of the sink, such as redis.url; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="only count the messages")


def requeue_dead(spark: "SparkSession", given: argparse.Namespace) -> str:
    from pyspark.sql import functions as sql

    named = [text for name, text in given.option.items() if SINK.find(name) is SINK_GROUP]
    named += [] if given.group is None else [given.group]
    group = {SINK_GROUP.name: named[-1]} if named else {}
    scope = {
        SLOTS.name: given.slots,
        STARTING_TIME.name: given.since,
        ENDING_TIME.name: given.until,
    }
    # The options of the connection are the only ones of the sink that a read accepts.
    connection = {name: text for name, text in given.option.items() if CONNECTION.find(name)}
    dead = (
        spark.read.format("rmq")
        .options(**{**connection, **group, "topic": given.topic, "queue": "dead"})
        .options(**{name: value for name, value in scope.items() if value is not None})
        .schema(_SEARCHED)
        .load()
    )
    # --where sees key and content as text, or as NULL if they are not UTF-8. The bytes are
    # requeued: the key, or without one the content.
    content = sql.when(sql.col(_KEY).isNull(), sql.col(_CONTENT))
    found = (
        dead.withColumnsRenamed({"key": _KEY, "content": _CONTENT})
        .withColumn("key", _text(_KEY))
        .withColumn("content", _text(_CONTENT))
        .where(given.where or "true")
        .select("topic", "slot", sql.col(_KEY).alias("key"), content.alias("content"))
        # Find all messages before requeuing one, so that one that dies again is not found twice.
        .localCheckpoint()
    )
    amount = found.count()
    if amount and not given.dry_run:
        found.write.format("rmq").options(**{**given.option, **group, "operation": "requeue"}).mode(
            "append"
        ).save()
    done = "found" if given.dry_run else "requeued"
    return f"{count_text(amount, 'dead message')} of {given.topic} {done}"


def _text(name: str) -> "Column":
    """Return a column of bytes as text, which is NULL where they are not UTF-8."""
    from pyspark.sql import functions as sql

    return sql.try_validate_utf8(sql.col(name).cast("string"))


# -- expire


def expire(given: argparse.Namespace) -> str:
    """Return a line for each topic. One that cannot be read fails the job after all others."""
    lines = []
    with broker_of(given) as broker:
        unread: dict[str, RmqError] = {}
        for topic in broker.topics(given.topics.fullmatch, unread.__setitem__):
            try:
                lines.append(f"{topic.name}: {_expire(broker, topic.name)}")
            except (ScriptFailed, WrongKeyType) as error:
                unread[topic.name] = error
    lines += [f"{name}: {error}" for name, error in unread.items()]
    text = "\n".join(sorted(lines)) or "No topic matches."
    if unread:
        raise JobFailed(text)
    return text


def _expire(broker: Broker, name: str) -> str:
    # Read again: by a retention that is longer now, less must be deleted.
    topic = broker.find(name)
    if topic is None:
        return "deleted meanwhile"
    forgotten = given_back = 0
    for group in topic.groups:
        queue = Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group)
        swept = sweep(queue)
        forgotten += swept.forgotten
        given_back += swept.given_back
    text = f"{given_back:,} messages given back"
    if topic.dead_retention_ms is not None:
        text += f", {forgotten:,} dead messages deleted"
    return text


# -- report


def add_report(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_place(parser, "--to", "--target-option", "the format to write: parquet, jdbc, console, ...")


def report(spark: "SparkSession", given: argparse.Namespace) -> str:
    with broker_of(given) as broker:
        chosen = [topic.name for topic in broker.topics(given.topics.fullmatch)]
        rows = look(broker, chosen) if chosen else []  # no names would stand for all topics
    options = place_options(given)
    if given.format in FILES:
        # Each run has its own folder: two writers in one folder would remove each other's files.
        options["path"] += f"/run={uuid.uuid4().hex}"
    frame = spark.createDataFrame([_figures(row) for row in rows], SCHEMA).coalesce(1)
    frame.write.format(given.format).options(**options).mode("append").save()
    return f"{len(rows):,} rows appended"


def _figures(row: Row) -> tuple[Any, ...]:
    figures = row.figures
    return (
        time_at(row.now_ms),
        row.topic,
        row.group,
        *row.states.values(),
        None if figures.store.oldest_ms is None else time_at(figures.store.oldest_ms),
        len(row.consumers),
        *(figures.counters.get(name, 0) for name in COUNTERS),
    )


JOBS = (
    Job("requeue_dead", REQUEUE_DEAD, add_chosen_dead, requeue_dead),
    Job("expire", EXPIRE, add_topics, expire, needs_spark=False),
    Job("report", REPORT, add_report, report),
)
