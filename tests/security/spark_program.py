"""A driver that does everything a Spark user does, in good and in bad luck; run by conftest.py.

Its only argument is JSON; the passwords come by the environment. What it counted, and the errors it
met with those behind them, go to outcomes.json. What Spark shows goes to stdout and to files.
"""

import contextlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from urllib.parse import quote

import redis
from pyspark.sql import SparkSession

import rmq_spark

from ..spark.driving import chained_text

given = json.loads(sys.argv[1])
SECRET, WRONG, ADMIN = json.loads(os.environ.pop("RMQ_TEST_SECRETS"))
FOLDER = Path(given["folder"])
DUE = "1000000"  # ms: long past
outcomes = {}

COMMON = {"keyPrefix": "shop:", **given["options"]}


def url(password):
    return f"{given['scheme']}://rmq:{quote(password, safe='')}@{given['address']}"


# The three ways to name a password.
IN_URL = {**COMMON, "redis.url": url(SECRET)}
IN_OPTIONS = {
    **COMMON,
    "redis.url": f"{given['scheme']}://{given['address']}",
    "redis.username": "rmq",
    "redis.password": SECRET,
}
IN_ENVIRONMENT = COMMON  # RMQ_REDIS_URL
REFUSED = {**COMMON, "redis.url": url(WRONG)}
GONE = {
    "keyPrefix": "shop:",
    "redis.url": f"redis://rmq:{quote(SECRET, safe='')}@127.0.0.1:{given['gone_port']}/0",
}


def show(*things):
    sys.stdout.write(f"{things}\n")


def attempt(name):
    """Notes what the function returns, or its error with all that is behind it."""

    def tell(function):
        try:
            outcomes[name] = function()
        except Exception as error:
            outcomes[name] = chained_text(error)

    return tell


def session():
    events = FOLDER / "events"
    events.mkdir()
    builder = SparkSession.builder.master("local[2]").appName("rmq-spark secrets")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # As docs/security.md has it for who puts the address among Spark's settings.
        "spark.executorEnv.RMQ_REDIS_URL": url(SECRET),
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|redis_url",
    }
    for name, value in settings.items():
        builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    return spark


def messages(amount):
    return spark.range(amount).selectExpr("concat('m', id) AS content")


def write(frame, topic, options, **more):
    asked = {"topic": topic, "topicType": "FixedTime", "slotAmount": "2", "fixedTime": DUE}
    frame.write.format("rmq").options(**asked, **options, **more).mode("append").save()
    return "written"


def read(topic, options):
    return spark.readStream.format("rmq").options(topic=topic, **options).load()


def drain(frame, name, into=None):
    """Runs a query to its end, and shows all that Spark tells of it."""
    frame.explain(True)
    writer = frame.writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(FOLDER / f"checkpoint-{name}"))
    query = (writer.foreachBatch(into) if into else writer.format("noop")).start()
    try:
        query.awaitTermination(120)
    finally:
        query.explain(True)
        show(query.status, query.recentProgress, query.exception())
        with contextlib.suppress(Exception):
            show(query.lastProgress)
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def admin():
    return redis.Redis(port=given["admin_port"], password=ADMIN)


def lose_claims(frame, batch_id):
    frame.count()
    with admin() as client:
        client.delete(*client.keys("shop:claims_*"))
    frame.count()


def exactly_once():
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    frame = source.selectExpr("concat('once', value) AS content")
    asked = {"topic": "Once", "topicType": "FixedTime", "slotAmount": "2", "fixedTime": DUE}
    query = (
        frame.writeStream.format("rmq")
        .options(**asked, **IN_OPTIONS, deliveryGuarantee="exactlyOnce")
        .option("checkpointLocation", str(FOLDER / "checkpoint-once"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    broker = connected()
    end = time.monotonic() + 120
    while query.isActive and time.monotonic() < end:
        if broker.find("Once") and broker.queue("Once").figures().store.count >= 5:
            break
        time.sleep(0.05)
    query.explain(True)
    query.stop()
    show(query.recentProgress)
    return broker.queue("Once").figures().store.count


def each_message():
    def bill(message):
        raise ValueError("no such customer")

    listener = rmq_spark.each_message(bill, options=IN_OPTIONS, delay="1h")
    show(listener, repr(listener))
    write(messages(3), "Each", IN_URL)
    drain(read("Each", IN_ENVIRONMENT), "each", listener)
    return listener.failed


def roll_back(frame, batch_id):
    part = frame.selectExpr("topic", "slot", "claimId", "content", "'1h' AS delay")
    part.write.format("rmq").options(**IN_URL, operation="rollback").mode("append").save()


def connected():
    options = {n.removeprefix("redis."): v for n, v in IN_URL.items() if n.startswith("redis.")}
    return rmq_spark.connect(key_prefix="shop:", **options)


def main():
    @attempt("write, password in the address")
    def _():
        return write(messages(20), "Orders", IN_URL)

    @attempt("write, password in the environment")
    def _():
        return write(messages(5), "Rolled", IN_ENVIRONMENT)

    @attempt("wrong password, each_message")
    def _():
        listener = rmq_spark.each_message(print, options=REFUSED)
        reading = {**IN_URL, "releaseOnStop": "true"}  # the next attempt gets these messages
        return drain(read("Orders", reading), "unsettled", listener)

    @attempt("read, password in the address")
    def _():
        return drain(read("Orders", IN_URL), "orders")

    @attempt("rollback")
    def _():
        return drain(read("Rolled", IN_OPTIONS), "rolled", roll_back)

    attempt("exactly once")(exactly_once)
    attempt("each message")(each_message)

    @attempt("wrong password, write")
    def _():
        return write(messages(5), "Orders", REFUSED)

    @attempt("wrong password, read")
    def _():
        return drain(read("Orders", REFUSED), "refused")

    @attempt("server gone, read")
    def _():
        return drain(read("Orders", {**GONE, "visibilityTimeout": "1s"}), "gone")

    @attempt("bad row")
    def _():
        rows = spark.createDataFrame([("x", -1)], "content STRING, fixedTime LONG")
        return write(rows, "Orders", IN_OPTIONS)

    @attempt("lost claim")
    def _():
        write(messages(4), "LeaseLost", IN_URL)
        return drain(read("LeaseLost", IN_URL), "lost", lose_claims)


logging.basicConfig(level=logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.INFO)  # at DEBUG it logs whatever the driver passes on
spark = session()
main()
spark.stop()
(FOLDER / "outcomes.json").write_text(json.dumps(outcomes, indent=1))
