"""docs/reference.md names every field of a progress report, and its type."""

import signal

import pytest

from rmq_spark.spark.options import parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.source.reader import RmqStreamReader

from ..texts.page import Page

REFERENCE = Page.read("docs/reference.md")
FIELDS = {name.strip("`"): kind for name, kind, _ in REFERENCE.rows("Progress reports")}
TYPES = {
    "text": str,
    "number": int | float,
    "number or null": int | float | None,
    "object": dict,
}
SUMS = {"due", "delayed", "prepared", "retry", "dead", "oldestDueMs", "asOfMs", "topics"}


@pytest.fixture
def report(broker, redis_url, zookeeper, root):
    """What a reader with these options reports that has read a batch."""
    before = signal.getsignal(signal.SIGTERM)
    readers = []

    def reported(**options):
        broker.create("Orders", "FixedTime", 4)
        broker.queue("Orders").send(["one", "two"], fixed_time=1)
        given = {
            "redis.url": redis_url,
            "keyPrefix": broker.key_prefix,
            "zookeeper.hosts": zookeeper.hosts,
            "zookeeper.root": root,
            "targetBatchDuration": "10s",
            **options,
        }
        reader = RmqStreamReader(parse_source_options(given), SOURCE_SCHEMA)
        readers.append(reader)
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for partition in reader.partitions(start, end):
            list(reader.read(partition))
        reader.latestOffset(end, reader.getDefaultReadLimit())
        return reader.reportLatestOffset()

    yield reported
    for reader in readers:
        reader.stop()
    signal.signal(signal.SIGTERM, before)


def test_the_fields_of_one_topic(report):
    found = report(topic="Orders")
    assert set(found) == set(FIELDS)
    assert [name for name in found if not isinstance(found[name], TYPES[FIELDS[name]])] == []
    assert found["counters"]["committed"] == 2
    counters = {cells[0].strip("`") for cells in REFERENCE.rows("Counters")}
    assert set(found["counters"]) == counters


def test_several_topics_have_them_by_name_and_sums_beside(report):
    found = report(topicPattern="Orders.*")
    assert set(found) == SUMS
    assert set(found["topics"]["Orders"]) == set(FIELDS) - {"topic"}
    above = REFERENCE.section("Progress reports")
    assert [name for name in SUMS if f"`{name}`" not in above] == []
