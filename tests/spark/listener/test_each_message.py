"""each_message: what becomes of messages that fail, and of those beside them."""

import json
import logging
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql.functions import array, col, lit, struct

import rmq_spark
from rmq_spark.client.queue import overview_of
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.errors import InvalidMessage
from rmq_spark.protocol.pages import first_entries
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.topics.keys import HIGHEST_SCORE

from ...logs import logged
from ...processes import alive
from ...seeding import requeue, rollback
from ...waiting import wait_until
from ..driving import DUE, contents, drained, refused
from .test_runner import LIMIT_S

DELIVERIES = 17  # one, and 16 retries


@pytest.fixture
def notes(tmp_path):
    """A file to which functions append JSON values, and what stands in it."""
    return Notes(str(tmp_path / "notes"))


class Notes:
    def __init__(self, path):
        self.path = path

    def taker(self):
        path = self.path

        def note(value):
            with open(path, "a") as file:  # a short line is written in one piece
                file.write(json.dumps(value) + "\n")

        return note

    def read(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path) as file:
            return [json.loads(line) for line in file]


@pytest.fixture
def listen(rmq):
    """Runs a listener over a topic: a query that ends when nothing is due any more."""

    def run(frame, listener, **trigger):
        writer = frame.writeStream.foreachBatch(listener)
        writer = writer.option("checkpointLocation", str(rmq.folder / "listened"))
        return writer.trigger(**trigger).start() if trigger else drained(writer)

    return run


@pytest.fixture
def claimed(rmq, spark):
    """A topic whose messages a run has claimed, and the DataFrame of its first micro-batch."""
    runs = []

    def claim(count=6, slots=1, schema=SOURCE_SCHEMA, **settings):
        queue = rmq.due(count, slots, **settings)
        run = rmq.by_hand(queue, schema)
        runs.append(run)
        _, rows = run.next(run.initial())
        return queue, spark.createDataFrame(rows, schema).coalesce(1)

    yield claim
    for run in runs:
        run.stop()


def listener(rmq, function, **settings):
    options = {"redis.url": rmq.url, **settings.pop("options", {})}
    return rmq_spark.each_message(function, options=options, **settings)


def totals(listener):
    return listener.succeeded, listener.failed, listener.left_alone


# -- the way of a poison message


@pytest.mark.long
def test_a_poison_message_dies_of_17_deliveries_and_comes_back_mended(rmq, spark, listen, notes):
    mended = str(rmq.folder / "mended")
    note = notes.taker()

    def bill(message):
        note([message.content, message.deliveryCount, message.retriesLeft])
        if message.content == "m500" and not os.path.exists(mended):
            raise ValueError("poison")

    queue = rmq.due(1000)
    heard = listener(rmq, bill)
    query = listen(rmq.read(spark, queue, numPartitions=1), heard, processingTime="0 seconds")
    wait_until(lambda: queue.figures().dead.count, "the poison message dies", 240)
    delivered = notes.read()
    poison = [call[1:] for call in delivered if call[0] == "m500"]
    assert poison == [[n, DELIVERIES - n] for n in range(1, DELIVERIES + 1)]
    others = sorted(call[0] for call in delivered if call[0] != "m500")
    assert others == sorted(f"m{n}" for n in range(1000) if n != 500)

    with open(mended, "w"):
        pass
    assert requeue(queue, queue.definition.slot_of(b"m500"), [b"m500"], DUE) == 1
    wait_until(lambda: heard.succeeded == 1000, "the mended message is done")
    assert notes.read()[len(delivered) :] == [["m500", 1, 16]]
    assert queue.figures().deaths == {"ValueError": 1}
    query.processAllAvailable()
    query.stop()
    assert totals(heard) == (1000, DELIVERIES, 0)
    figures = queue.figures()
    assert figures.counters["committed"] == 1000
    assert [figures.store.count, figures.prepare.count, figures.dead.count] == [0, 0, 0]


@pytest.mark.long
def test_messages_of_a_slot_come_in_order_and_never_two_at_once(rmq, spark, listen, notes):
    note = notes.taker()

    def bill(message):
        began = time.monotonic()
        time.sleep(0.001)
        note([message.slot, int(message.content[1:]), began, time.monotonic()])

    queue = rmq.due(400)
    heard = listener(rmq, bill)
    listen(rmq.read(spark, queue, maxRecordsPerTrigger=150, numPartitions=3), heard)
    assert totals(heard) == (400, 0, 0)
    calls = notes.read()
    assert sorted(call[1] for call in calls) == list(range(400))
    for slot in range(4):
        of_slot = sorted((call for call in calls if call[0] == slot), key=lambda call: call[2])
        assert [call[1] for call in of_slot] == sorted(call[1] for call in of_slot)
        ends = [call[3] for call in of_slot]
        assert all(end <= began for end, (_, _, began, _) in zip(ends, of_slot[1:], strict=False))


@pytest.mark.long
def test_what_raises_hangs_or_dies_is_rolled_back_alone_and_told(rmq, spark, listen, notes, caplog):
    note = notes.taker()

    def bill(message):
        note(message.content)
        if message.content == "m1":
            raise ValueError("one")
        if message.content == "m2":
            os._exit(2)
        if message.content == "m3":
            os.kill(os.getpid(), signal.SIGKILL)

    queue = rmq.due(100, slots=2)
    heard = listener(rmq, bill, delay="1h")
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        listen(rmq.read(spark, queue), heard)
    assert totals(heard) == (97, 3, 0)
    assert sorted(notes.read()) == sorted(f"m{n}" for n in range(100))
    figures = queue.figures()
    assert (figures.counters["committed"], figures.retry.count, figures.retry.due) == (97, 3, 0)
    assert "3 of 100 messages failed and were rolled back\n" in logged(caplog)
    told = [r.getMessage() for r in caplog.records if "slot " in r.getMessage()]
    assert len(told) == 3
    assert all(any(f", message 'm{n}': " in line for line in told) for n in (1, 2, 3))
    assert all(f"topic {queue.definition.name}, slot " in line for line in told)
    ended = "ProcessEnded: "
    reasons = ["ValueError: one (", f"{ended}exit status 2", f"{ended}killed by SIGKILL"]
    assert all(any(reason in line for line in told) for reason in reasons)


@pytest.mark.parametrize("way", ["sleep", "c"])
def test_what_takes_longer_than_the_timeout_is_rolled_back_alone(rmq, claimed, way):
    def hang(message):
        if message.content == "m3":
            if way == "sleep":
                time.sleep(1000)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            os.read(os.pipe()[0], 1)

    queue, frame = claimed()
    heard = listener(rmq, hang, timeout=f"{LIMIT_S:g}s")
    heard(frame, 1)
    assert totals(heard) == (5, 1, 0)
    assert (queue.figures().prepare.count, queue.figures().store.count) == (5, 1)


@pytest.mark.parametrize("batch", [False, True, "pandas"])
def test_calls_are_timed(rmq, claimed, batch):
    """What takes its lateness from the column dueTime; each call counts once."""
    queue, frame = claimed()
    heard = listener(rmq, lambda messages: None, batch=batch)
    heard(frame, 1)
    [(topic, timings)] = heard.timings().items()
    assert topic == queue.definition.name
    assert sum(timings.durations.counts) == (1 if batch else 6)
    assert timings.durations.sum > 0
    assert sum(timings.latenesses.counts) == timings.latenesses.counts[-1] == 6  # due since 1970
    heard(frame.drop("dueTime"), 2)
    [timings] = heard.timings().values()
    assert sum(timings.durations.counts) == (2 if batch else 12)
    assert sum(timings.latenesses.counts) == 6


def test_lateness_counts_from_the_due_time_to_the_call():
    timings = Timings()
    timings.add(0.1, due_ms=1_000, claimed_ms=62_500, since_claim_s=0.25)
    timings.add(0.1, due_ms=None, claimed_ms=62_500, since_claim_s=9)
    timings.add(0.1, due_ms=70_000, claimed_ms=62_500, since_claim_s=0)  # by a clock that is slow
    assert timings.latenesses.sum == 61.75
    assert sum(timings.latenesses.counts) == 2


def test_a_retry_is_not_late(rmq, spark):
    queue = rmq.due(3, slots=1)
    with rmq.by_hand(queue) as run:
        offset, rows = run.next(run.initial())
        rollback(queue, 0, rows[0]["claimId"], [b"m0"])
        _, again = run.next(offset)
    heard = listener(rmq, lambda message: None)
    heard(spark.createDataFrame(again, SOURCE_SCHEMA), 1)
    [timings] = heard.timings().values()
    assert sum(timings.durations.counts) == 1
    assert sum(timings.latenesses.counts) == 0


def test_a_failure_without_delay_takes_the_topics_backoff(rmq, claimed):
    def refuse(message):
        raise ValueError

    queue, frame = claimed(retry_backoff="1h")
    listener(rmq, refuse)(frame, 1)
    assert queue.figures().retry.count == 6


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("Grüße\n\x1b[2J", r"message 'Grüße\n\x1b[2J': ValueError"),
        ("x" * 80, f"message '{'x' * 80}': ValueError"),
        ("ü" * 81, f"message '{'ü' * 80}'...: ValueError"),
    ],
    ids=["escaped", "whole", "cut"],
)
def test_the_log_names_the_message(rmq, spark, claimed, caplog, content, shown):
    def refuse(message):
        raise ValueError("no")

    _, frame = claimed(1)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        listener(rmq, refuse)(frame.withColumn("content", lit(content)), 1)
        assert shown in logged(caplog)
        listener(rmq, refuse)(frame.withColumn("content", lit(content).cast("binary")), 1)
    assert logged(caplog).count(shown) == 2


def test_the_log_names_a_message_that_is_no_text_and_counts_those_beside_it(rmq, claimed, caplog):
    def refuse(batch):
        raise ValueError("no")

    _, frame = claimed(3)
    frame = frame.withColumn("content", lit(b"\xff\x00"))
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        listener(rmq, refuse, batch=True)(frame, 1)
    assert r"message b'\xff\x00' and 2 others: ValueError" in logged(caplog)


@pytest.mark.parametrize(
    ("failed", "told"), [(3, "rolled back\n"), (9, "rolled back; the first 5 errors follow\n")]
)
def test_the_log_says_if_it_does_not_show_all_errors(rmq, claimed, caplog, failed, told):
    def refuse(message):
        raise ValueError("no")

    _, frame = claimed(failed)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        listener(rmq, refuse)(frame, 1)
    assert f"{failed} of {failed} messages failed and were {told}" in logged(caplog)
    assert logged(caplog).count("ValueError: no") == min(failed, 5)


@pytest.mark.parametrize("log_contents", ["true", "false"])
def test_dead_messages_keep_the_error_of_their_function(rmq, claimed, log_contents):
    """The text of an error may quote the message, which not all may see."""

    def refuse(message):
        raise ValueError(f"no: {message.content}")

    queue, frame = claimed(3, max_retries=0)
    listener(rmq, refuse, options={"logContents": log_contents})(frame, 1)
    dead = first_entries(queue.pages("dead", 0), 3)
    reasons = [entry.reason for entry in dead]
    if log_contents == "true":
        assert [reason.partition(" (test_each")[0] for reason in reasons] == [
            f"ValueError: no: m{number}" for number in range(3)
        ]
    else:
        assert reasons == ["ValueError"] * 3
    assert queue.figures().deaths == {"ValueError": 3}


def test_the_log_names_no_message_where_contents_are_not_to_be_logged(rmq, claimed, caplog):
    def refuse(message):
        raise ValueError(f"no: {message.content}")

    queue, frame = claimed(1)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        listener(rmq, refuse, options={"logContents": "false"})(frame, 1)
    assert f"topic {queue.definition.name}, slot 0, claim " in logged(caplog)
    assert "1 message: ValueError" in logged(caplog)
    assert "m0" not in logged(caplog)


# -- what the function gets


def test_a_function_gets_rows_as_collect_gives_them(rmq, claimed, notes):
    note = notes.taker()

    def bill(message):
        note(repr(message))

    _, frame = claimed()
    frame = frame.withColumn("lines", array(struct("content", lit(1).alias("n"))))
    listener(rmq, bill)(frame, 1)
    assert notes.read() == [repr(row) for row in frame.collect()]


def test_ends_beyond_pythons_calendar_come_as_its_last_day(rmq, spark, listen, notes):
    """Failed before: such a message and all beside it failed, at each start of the query."""
    queue, note = rmq.due(1, 1), notes.taker()
    for end in (datetime.max.replace(tzinfo=UTC), HIGHEST_SCORE):
        queue.send([f"until {end}"], fixed_time=DUE, expires_at=end)
    frame = rmq.read(
        spark,
        queue,
        schema="content STRING, topic STRING, slot INT, claimId STRING, expiresAt TIMESTAMP",
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # 14 hours ahead
    try:
        heard = listener(rmq, lambda message: note(str(message.expiresAt)))
        listen(frame, heard)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert totals(heard) == (3, 0, 0)
    assert [until[:7] for until in sorted(notes.read())] == ["9999-12", "9999-12", "None"]


def test_binary_contents_are_rolled_back_as_they_are(rmq, spark):
    def refuse(message):
        assert message.content == b"\xff\x00"
        raise ValueError

    queue = rmq.queue(slots=1)
    queue.send([b"\xff\x00"], fixed_time=DUE)
    schema = "content BINARY, topic STRING, slot INT, claimId STRING"
    frame = rmq.read(spark, queue, schema=schema)
    heard = listener(rmq, refuse, delay="1h")
    writer = frame.writeStream.foreachBatch(heard)
    drained(writer.option("checkpointLocation", str(rmq.folder / "binary")))
    assert totals(heard) == (0, 1, 0)
    assert queue.figures().retry.count == 1


def test_a_function_may_use_a_broadcast_and_print(rmq, spark, claimed):
    table = spark.sparkContext.broadcast({f"m{n}": n for n in range(6)})

    def bill(message):
        os.write(1, b"[]" * 5000)
        assert table.value[message.content] < 5

    _, frame = claimed()
    heard = listener(rmq, bill)
    heard(frame, 1)
    assert totals(heard) == (5, 1, 0)


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_function_of_batches_gets_a_claim_in_order_and_tells_what_failed(
    rmq, claimed, notes, kind
):
    note = notes.taker()

    def bill(batch):
        table = batch.to_pydict() if kind == "arrow" else batch.to_dict("list")
        note([sorted(set(table["slot"])), table["content"]])
        if "m0" in table["content"]:
            return [table["content"].index("m0")]
        if kind == "pandas":
            return batch["content"] == "m7"
        return None

    queue, frame = claimed(40, slots=4)
    heard = listener(rmq, bill, batch="pandas" if kind == "pandas" else True, delay="1h")
    heard(frame, 1)
    calls = notes.read()
    assert sorted(slots for slots, _ in calls) == [[0], [1], [2], [3]]
    given = [content for _, contents in calls for content in contents]
    assert given == contents([row.asDict() for row in frame.collect()])
    # m0 and m7 lie in two slots.
    assert queue.definition.slot_of(b"m0") != queue.definition.slot_of(b"m7")
    assert totals(heard) == ((39, 1, 0) if kind == "arrow" else (38, 2, 0))
    assert queue.figures().retry.count == heard.failed


@pytest.mark.parametrize("returned", ["12", [99], [True], 0.5])
def test_a_nonsense_answer_rolls_back_the_whole_call(rmq, claimed, caplog, returned):
    def bill(batch):
        return returned if batch["slot"][0].as_py() == 1 else None

    queue, frame = claimed(40, slots=2)
    of_slot = frame.where("slot = 1").count()
    heard = listener(rmq, bill, batch=True, delay="1h")
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        heard(frame, 1)
    assert totals(heard) == (40 - of_slot, of_slot, 0)
    assert queue.figures().retry.count == of_slot
    assert f"Accepted: None, positions 0 to {of_slot - 1}, a mask of" in logged(caplog)


# -- when more than a message goes wrong


def test_a_claim_that_is_gone_is_counted_and_no_error(rmq, claimed, caplog):
    def refuse(message):
        raise ValueError

    queue, frame = claimed()
    heard = listener(rmq, refuse)
    heard(frame, 1)
    heard(frame, 1)
    assert totals(heard) == (0, 12, 6)
    assert queue.figures().counters["rolledBack"] == 6
    assert "rolled back; the claim of 6 was gone" in logged(caplog)


def test_a_rollback_that_redis_refuses_fails_the_batch_and_loses_nothing(rmq, claimed):
    def refuse(message):
        raise ValueError

    queue, frame = claimed()
    queue.server.client.set(queue.keys.retry(0), "in the way")
    heard = listener(rmq, refuse)
    with refused(PySparkException, "WrongKeyType", "holds a string"):
        heard(frame, 1)
    queue.server.client.delete(queue.keys.retry(0))
    assert queue.figures().prepare.count == 6
    assert totals(heard) == (0, 6, 0)


def test_a_wrong_address_shows_before_the_first_message(rmq, claimed, notes):
    note = notes.taker()
    _, frame = claimed()
    remedy = "each_message does not see the options of the source: give it the same redis.*"
    with refused(PySparkException, "UnknownTopic", "under the prefix other:", remedy):
        listener(rmq, lambda message: note(1), options={"keyPrefix": "other:"})(frame, 1)
    assert notes.read() == []


def test_a_function_that_executors_cannot_load_fails_the_batch(rmq, claimed):
    class Unloadable:
        def __reduce__(self):
            return (exec, ("raise ImportError('no module named billing')",))

        def __call__(self, message):
            pass

    queue, frame = claimed()
    with refused(PySparkException, "UnusableFunction", "no module named billing"):
        listener(rmq, Unloadable())(frame, 1)
    assert queue.figures().prepare.count == 6


def test_the_functions_process_is_kept_and_ends_with_its_worker(rmq, claimed, notes):
    note = notes.taker()

    def bill(message):
        note([os.getpid(), os.getppid()])

    _, frame = claimed()
    heard = listener(rmq, bill)
    heard(frame, 1)
    heard(frame, 2)
    processes = {tuple(call) for call in notes.read()}
    assert len({child for child, _ in processes}) == len({worker for _, worker in processes})
    for child, worker in processes:
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda child=child: not alive(child), "it ends")


def test_no_process_hangs_on_when_the_query_is_stopped(rmq, spark, listen, notes, request):
    note = notes.taker()

    def hang(message):
        note([os.getpid(), os.getppid()])
        time.sleep(1000)

    query = listen(rmq.read(spark, rmq.due(10)), listener(rmq, hang), processingTime="0 seconds")
    wait_until(notes.read, "the function is called")
    query.stop()
    # The JVM has inherited the file of pytest's own capture, before any fixture began.
    captured = request.config.pluginmanager.getplugin("capturemanager").read_global_capture()
    assert "StackOverflowError" not in captured.err
    for pid in [pid for call in notes.read() for pid in call]:
        wait_until(lambda pid=pid: not alive(pid), "it ends")


# -- a query that ends within a batch


def test_a_stop_within_a_batch_counts_what_the_function_has_done(rmq, spark, listen, notes):
    note = notes.taker()

    def bill(message):
        number = int(message.content[1:])
        note(number)
        if number >= 30:
            time.sleep(1000)
        if number % 10 == 0:
            raise ValueError("no")

    queue = rmq.due(60, slots=2)
    heard = listener(rmq, bill, delay="1h")
    frame = rmq.read(spark, queue, numPartitions=2)
    earlier = counts_keys(rmq)
    query = listen(frame, heard, processingTime="0 seconds")
    wait_until(lambda: sum(n >= 30 for n in notes.read()) == 2, "both tasks hang")
    # Spark kills tasks some seconds after a stop, whatever they are at.
    wait_until(lambda: reported(rmq, earlier) == [27, 3, 0], "they have told so")
    query.stop()
    assert sorted(n for n in notes.read() if n < 30) == list(range(30))
    assert totals(heard) == (27, 3, 0)
    figures = queue.figures()
    assert (figures.counters["committed"], figures.counters["rolledBack"]) == (0, 3)
    assert not counts_keys(rmq) - earlier


def counts_keys(rmq):
    """The keys of counts; a batch that failed before a task told something leaves its own there."""
    return set(rmq.broker.server.client.keys("listener:*"))


def reported(rmq, earlier):
    """What the tasks of all batches since ``earlier`` have told so far, in all."""
    client = rmq.broker.server.client
    keys = counts_keys(rmq) - earlier
    counts = [text.split() for key in keys for text in client.hvals(key)]
    # A task that has only begun has told nothing yet.
    return [sum(int(count[at]) for count in counts if len(count) > at) for at in range(3)]


def test_a_batch_that_one_task_fails_counts_what_the_others_have_done(rmq, spark, claimed, notes):
    path, note, url = notes.path, notes.taker(), rmq.url
    queue, frame = claimed(40, slots=2)
    of_slot, earlier = frame.where("slot = 1").count(), counts_keys(rmq)

    def all_others_are_counted():
        with redis.Redis.from_url(url) as client:
            keys = set(client.keys("listener:*")) - earlier
            counts = [text for key in keys for text in client.hvals(key)]
        return sum(int(text.split()[0]) for text in counts) == 39

    def bill(message):
        note(message.slot)
        if Path(path).read_text().split().count("1") == of_slot and message.slot == 1:
            while not all_others_are_counted():
                time.sleep(0.01)
            raise ValueError("no")

    queue.server.client.set(queue.keys.retry(1), "in the way")
    heard = listener(rmq, bill)
    with refused(PySparkException, "WrongKeyType"):
        heard(frame.repartition(8, "slot"), 1)  # of two partitions, both slots hash to one
    assert totals(heard) == (39, 1, 0)


# -- verdicts


def say(content):
    """What a function of messages m0 to m5 raises, or what one of batches says of them."""
    return {
        "m0": rmq_spark.Retry("1h", "later"),
        "m1": rmq_spark.Bury(f"no customer {content}"),
        "m2": rmq_spark.Snooze("1h"),
        "m3": ValueError("no"),
    }.get(content)


def say_one(message):
    if verdict := say(message.content):
        raise verdict


def say_all(batch):
    contents = batch["content"].to_pylist()
    return {row: said for row, content in enumerate(contents) if (said := say(content))}


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "batches"])
@pytest.mark.parametrize("log_contents", ["true", "false"])
def test_every_message_goes_where_its_verdict_says(rmq, claimed, caplog, batch, log_contents):
    queue, frame = claimed(6)
    heard = listener(
        *(rmq, say_all if batch else say_one),
        **{"batch": batch, "delay": "0s", "options": {"logContents": log_contents}},
    )
    before = queue.now_ms()
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        heard(frame, 1)
    assert (*totals(heard), heard.snoozed) == (2, 3, 0, 1)
    waiting = {e.content: e for e in first_entries(queue.pages("retry", 0), 9)}
    assert {content: e.retries_left for content, e in waiting.items()} == {b"m0": 16, b"m2": 16}
    assert all(e.due_time_ms >= before + 3_600_000 for e in waiting.values())
    assert [e.content for e in first_entries(queue.pages("store", 0), 9)] == [b"m3"]
    (dead,) = first_entries(queue.pages("dead", 0), 9)
    assert dead.content == b"m1"
    text = "Bury: no customer m1" if log_contents == "true" else "Bury"
    assert dead.reason.partition(" (test_")[0] == text
    assert queue.figures().deaths == {"Bury": 1}
    log = logged(caplog)
    assert "3 of 6 messages failed" in log
    assert ("customer" in log) == (log_contents == "true")
    assert "Snooze" not in log


def hold_at_third(message):
    if message.content == "m2":
        raise rmq_spark.Hold("1h")


def test_a_hold_ends_the_calls_and_no_message_pays_for_it(rmq, claimed):
    queue, frame = claimed(6)
    heard = listener(rmq, hold_at_third)
    heard(frame, 1)
    assert (*totals(heard), heard.snoozed) == (2, 0, 0, 1)
    [waiting] = first_entries(queue.pages("retry", 0), 9)
    assert (waiting.content, waiting.retries_left) == (b"m2", 16)
    assert [e.content for e in first_entries(queue.pages("store", 0), 9)] == [b"m3", b"m4", b"m5"]
    assert overview_of(queue).held_until_ms > queue.now_ms()


def hold_in_a_batch(batch):
    contents = batch["content"].to_pylist()
    return {row: rmq_spark.Hold("1h") for row, content in enumerate(contents) if content == "m2"}


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "batches"])
def test_a_hold_ends_the_work_of_its_task(rmq, claimed, batch):
    """Its messages come in parts of at most 1024."""
    queue, frame = claimed(3000)
    heard = listener(rmq, hold_in_a_batch if batch else hold_at_third, batch=batch)
    heard(frame, 1)
    done, *failed = totals(heard)
    assert (failed, heard.snoozed) == ([0, 0], 1)
    assert done == (1023 if batch else 2)
    figures = queue.figures()
    assert (figures.store.count, figures.retry.count) == (3000 - done - 1, 1)


# -- bad input


@pytest.mark.parametrize("missing", ["topic", "slot", "claimId", "content"])
def test_a_missing_column_is_named(rmq, claimed, missing):
    _, frame = claimed()
    with refused(InvalidMessage, f"needs the column {missing} too", "of the source"):
        listener(rmq, print)(frame.drop(missing), 1)


def test_columns_of_another_type_or_twice_or_null_are_refused(rmq, claimed):
    _, frame = claimed()
    with refused(InvalidMessage, "The column slot is STRING. Accepted: INT"):
        listener(rmq, print)(frame.withColumn("slot", lit("1")), 1)
    with refused(InvalidMessage, "the column slot once"):
        listener(rmq, print)(frame.select("*", col("slot").alias("SLOT")), 1)
    with refused(PySparkException, "The column topic has a null"):
        nothing = lit(None).cast("string")
        listener(rmq, print)(frame.withColumn("topic", nothing), 1)
