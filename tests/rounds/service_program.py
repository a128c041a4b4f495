"""A service with a listener, or a query: notes each message in a file, until SIGTERM."""

import asyncio
import os
import sys
from types import SimpleNamespace

from rmq_spark import Bury, Retry, Snooze, aio, each_message, register
from rmq_spark.client import connect

# Also in the processes of the listener, which import this module, and of a query's function.
KIND, URL, TOPIC, NAME, NOTED, LEASE = sys.argv[1:7]
GROUP, DOOMED = [*sys.argv[7:], "", ""][:2]
SETTINGS = {"visibility_timeout": LEASE, "group": GROUP}


FILE = []


def noted():
    """The file, to which several processes append; each opens it for itself."""
    if not FILE:
        FILE.append(os.open(NOTED, os.O_CREAT | os.O_WRONLY | os.O_APPEND))
    return FILE[0]


def note(message):
    if DOOMED and message.content.endswith(DOOMED.encode()):
        raise ValueError("this message always fails")
    verdict = obey(message)
    os.write(noted(), message.content + b":%d" % message.delivery_count * verdict + b"\n")


def obey(message):
    """Raise what a content asks for behind its number. Returns whether it does."""
    match message.content.partition(b"-")[2]:
        case b"bury":
            raise Bury("as it says")
        case b"retry" if message.delivery_count == 1:
            raise Retry("1ms")
        case b"snooze" if not os.path.exists(f"{NOTED}-awake"):
            raise Snooze("1s")
        case verdict:
            return verdict in (b"bury", b"retry", b"snooze")


async def note_in_loop(message):
    await asyncio.sleep(0)
    note(message)


def note_row(row):
    note(SimpleNamespace(content=row.content.encode(), delivery_count=row.deliveryCount))


def query():
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    source = spark.readStream.format("rmq").option("topic", TOPIC).option("redis.url", URL)
    frame = source.option("visibilityTimeout", LEASE).option("maxRecordsPerTrigger", "10000").load()
    to_file = frame.writeStream.foreachBatch(each_message(note_row, options={"redis.url": URL}))
    to_file.option("checkpointLocation", f"{NOTED}-{NAME}").start().awaitTermination()


def run():
    with connect(URL) as broker:
        broker.listen(TOPIC, NAME, note, processes=KIND == "processes", **SETTINGS).run()


async def run_in_loop():
    async with await aio.connect(URL) as broker:
        await broker.listen(TOPIC, NAME, note_in_loop, **SETTINGS).run()


if __name__ == "__main__":
    if KIND == "query":
        query()
    elif KIND == "asyncio":
        asyncio.run(run_in_loop())
    else:
        run()
