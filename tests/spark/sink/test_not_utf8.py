"""STRING columns whose bytes are no UTF-8, as CAST(X'FF' AS STRING) makes them in Spark."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

import rmq_spark
from rmq_spark.errors import InvalidMessage
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.writer import REASON, with_refusals

from ...logs import logged
from ..driving import DUE, refused

TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "timeRange": (LongType(), pa.int64()),
    "priority": (IntegerType(), pa.int32()),
    "fixedTime": (TimestampType(), pa.timestamp("us", "UTC")),
    "slot": (IntegerType(), pa.int32()),
}
TEXT: tuple[DataType, pa.DataType] = (StringType(), pa.string())
BAD = b"\xff\xfea"
SHOWN = r"(content b'\xff\xfea')"
CLAIM = b"consumer:1:0:1"


def column(name: str, values: list[Any]) -> pa.Array:
    """As Spark gives it; texts are given as bytes."""
    arrow = TYPES.get(name, TEXT)[1]
    if arrow == pa.string():
        return pa.array(values, pa.binary()).view(arrow)
    return pa.array(values, pa.int64()).cast(arrow)


def write(rmq, queue, columns: dict[str, list[Any]], **options: str):
    """One task's write of one Arrow batch."""
    schema = StructType()
    for name in columns:
        schema = schema.add(name, TYPES.get(name, TEXT)[0])
    arrays = [column(name, values) for name, values in columns.items()]
    topic = {} if "topic" in columns else {"topic": queue.definition.name}
    writer = rmq.writer(schema, **topic, **options)
    return writer.write(iter([pa.RecordBatch.from_arrays(arrays, names=list(columns))]))


def stored(queue):
    """By slot, the contents."""
    pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
    return {page.slot: page.contents for page in pages}


@pytest.mark.parametrize(
    ("topic_type", "name", "values", "said"),
    [
        ("Priority", "priority", [20, None], "None. Accepted: INT or BIGINT, 17 to"),
        ("Priority", "priority", [20, 3], "3. Accepted: INT or BIGINT, 17 to"),
        ("RangeMerge", "timeRange", [5, 0], "0. Accepted: INT or BIGINT (ms)"),
        ("FixedTime", "fixedTime", [DUE, None], "None. Accepted: "),
        ("FixedTime", "fixedTime", [DUE, -(2**62)], f"-{2**62}. Accepted: "),
        ("FixedTime", "fixedTime", [DUE, 2**63 - 1], f"{2**63 - 1}. Accepted: "),
    ],
)
def test_a_value_that_is_refused_beside_such_a_content_is_named(
    rmq, topic_type, name, values, said
):
    queue = rmq.queue(topic_type)
    with refused(InvalidMessage, "Row 1 ", SHOWN, f"{name} is {said}", "Nothing of this batch"):
        write(rmq, queue, {"content": [b"a", BAD], "slotBasis": [BAD, BAD], name: values})
    assert stored(queue) == {}


@pytest.mark.parametrize(
    ("operation", "columns", "said"),
    [
        ("cancel", {"slot": [0, 9]}, "slot is 9. Accepted: 0 to 3"),
        ("purge", {"slot": [0, None]}, "slot is None. Accepted: 0 to 3"),
        ("requeue", {"fixedTime": [DUE, -1000]}, "fixedTime is "),
        ("rollback", {"slot": [0, -1], "claimId": [CLAIM, CLAIM]}, "slot is -1. Accepted: 0 to 3"),
        ("rollback", {"slot": [0, 0], "claimId": [CLAIM, b"x"]}, "claimId is 'x'"),
        (
            "rollback",
            {"slot": [0, 0], "claimId": [CLAIM, CLAIM], "delay": [None, b"soon"]},
            "delay is 'soon'. Accepted: a number with its unit",
        ),
    ],
)
def test_every_operation_names_what_it_refuses_beside_such_a_content(rmq, operation, columns, said):
    queue = rmq.queue()
    with refused(InvalidMessage, "Row 1 ", SHOWN, said):
        write(rmq, queue, {"content": [b"a", BAD], **columns}, operation=operation)


@pytest.mark.parametrize("null_row", [0, 1])
def test_a_missing_topic_beside_such_a_content_is_named(rmq, null_row):
    queue = rmq.queue("Priority")
    topics = [queue.definition.name.encode()] * 2
    topics[null_row] = None
    with refused(InvalidMessage, f"Row {null_row} ", SHOWN, "topic is None"):
        write(rmq, None, {"content": [BAD, BAD], "priority": [20, 20], "topic": topics})
    assert stored(queue) == {}


@pytest.mark.parametrize("bad", [BAD, b"\xff" * 10_000])
def test_a_topic_that_is_no_text_is_named_and_cut_short(rmq, bad):
    queue = rmq.queue("Priority")
    columns = {"content": [b"a", bad], "topic": [queue.definition.name.encode(), bad]}
    with pytest.raises(InvalidMessage) as error:
        write(rmq, None, {**columns, "priority": [20, 20]})
    text = str(error.value)
    for part in (
        r"Row 1 of its batch (content b'\xff",
        r"topic is b'\xff",
        "Accepted: the name of a topic, in valid UTF-8",
        "is_valid_utf8(topic) is false",
        "Nothing of this batch",
    ):
        assert part in text
    assert len(text) < 500
    assert stored(queue) == {}


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("claimId", "the claimId that came with the message, in valid UTF-8"),
        ("delay", "null for the topic's backoff, in valid UTF-8"),
    ],
)
def test_a_text_of_a_rollback_that_is_no_text_is_named(rmq, name, accepted):
    columns = {"content": [b"a", BAD], "slot": [0, 0], "claimId": [CLAIM, CLAIM]}
    columns[name] = [CLAIM if name == "claimId" else b"5s", BAD]
    with refused(
        InvalidMessage,
        *("Row 1 ", SHOWN, rf"{name} is b'\xff\xfea'. Accepted: ", accepted),
        f"is_valid_utf8({name}) is false",
    ):
        write(rmq, rmq.queue(), columns, operation="rollback")


def test_contents_and_slot_bases_are_bytes_and_found_again_as_such(rmq):
    queue = rmq.queue("Priority", slots=64)
    columns = {"content": [BAD, b"\xc3\x28"], "slotBasis": [b"\xff", None]}
    slots = [queue.definition.slot_of(basis) for basis in (b"\xff", b"\xc3\x28")]
    assert slots[0] != slots[1]
    write(rmq, queue, {**columns, "priority": [20, 20]})
    assert stored(queue) == {slots[0]: [BAD], slots[1]: [b"\xc3\x28"]}
    assert write(rmq, queue, columns, operation="cancel").counts == {"cancelled": 2}
    assert stored(queue) == {}


# -- with Spark


def test_spark_tells_which_row_it_was(spark, rmq):
    queue = rmq.queue("Priority")
    rows = spark.sql("SELECT CAST(X'FFFE61' AS STRING) AS content, CAST(NULL AS INT) AS priority")
    with refused(PySparkException, f"InvalidMessage: Row 0 of its batch {SHOWN}: priority is None"):
        rmq.write(rows, queue.definition.name)
    assert stored(queue) == {}


def test_why_a_row_would_be_refused_is_told_of_each(spark, rmq):
    name = rmq.queue("Priority").definition.name
    rows = spark.sql(
        f"SELECT * FROM VALUES (CAST(X'FFFE61' AS STRING), 20, '{name}'), ('b', 3, '{name}'), "
        f"(CAST(X'FFFE61' AS STRING), 3, '{name}'), ('d', 20, CAST(X'FFFE61' AS STRING)) "
        "AS rows(content, priority, topic)"
    ).coalesce(1)
    checked = with_refusals(rows, rows.columns, parse_sink_options({"redis.url": rmq.url}))
    reasons = [row[0] for row in checked.select(REASON).collect()]
    assert reasons[0] is None
    said = ["priority is 3", f"{SHOWN}: priority is 3", r"topic is b'\xff\xfea'"]
    assert [part in reason for part, reason in zip(said, reasons[1:], strict=True)] == [True] * 3


# -- each_message


def listener(rmq, function=lambda message: None, **settings):
    return rmq_spark.each_message(function, options={"redis.url": rmq.url}, **settings)


def received(spark, rmq, **columns):
    """A message as the source gives it, with other columns; these are SQL."""
    topic = rmq.queue().definition.name
    given = {"content": "'a'", "topic": f"'{topic}'", "slot": "0", "claimId": "'c:1:0:1'"}
    given.update(columns)
    return spark.sql("SELECT " + ", ".join(f"{text} AS {name}" for name, text in given.items()))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", ["topic", "claimId"])
def test_a_listener_refuses_what_names_no_claim(spark, rmq, name, batch):
    frame = received(spark, rmq, **{name: "CAST(X'FFFE61' AS STRING)"})
    said = rf"InvalidMessage: The column {name} has b'\xff\xfea' in row 0 of its batch"
    with refused(PySparkException, said, "Accepted: the values of the source"):
        listener(rmq, batch=batch)(frame, 1)


@pytest.mark.parametrize("batch", [False, "pandas"])
@pytest.mark.parametrize("name", ["content", "note"])
def test_a_listener_names_the_column_that_cannot_be_read(spark, rmq, name, batch):
    frame = received(spark, rmq, **{name: "CAST(X'FFFE61' AS STRING)"})
    said = rf"InvalidMessage: The column {name} has b'\xff\xfea' in row 0 of its batch"
    with refused(PySparkException, said, "Accepted: valid UTF-8", "Cast it to BINARY"):
        listener(rmq, batch=batch)(frame, 1)


def test_a_listener_of_arrow_batches_gets_such_texts_as_they_are(spark, rmq):
    def look(batch):
        notes = batch.column("note").cast(pa.binary())
        return [] if notes.to_pylist() == [BAD] else [0]

    frame = received(spark, rmq, note="CAST(X'FFFE61' AS STRING)")
    heard = listener(rmq, look, batch=True)
    heard(frame, 1)
    assert (heard.succeeded, heard.failed) == (1, 0)


def test_a_reason_that_is_no_text_fails_its_message_alone(spark, rmq, caplog):
    """Seen: such a text, which json.loads can give, failed the query, again and again."""

    def refuse(message):
        raise ValueError("name \ud800 is unknown")

    heard = listener(rmq, refuse)
    heard(received(spark, rmq), 1)
    assert (heard.succeeded, heard.failed, heard.left_alone) == (0, 1, 1)
    assert r"ValueError: name \ud800 is unknown" in logged(caplog)
