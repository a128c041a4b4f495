"""A topic's definition replaced, unless somebody else was faster."""

import pytest

from rmq_spark.topics.keys import topics_key


@pytest.fixture
def topics(broker):
    return topics_key(broker.key_prefix)


def alter(broker, topics, read, new):
    return broker.server.call("alter", [topics], ["T", read, new])


def test_the_definition_that_was_read_is_replaced(broker, topics):
    broker.server.command("HSET", topics, "T", "old", "Other", "kept")
    assert alter(broker, topics, "old", "new") == 1
    assert broker.server.client.hgetall(topics) == {b"T": b"new", b"Other": b"kept"}


def test_one_that_changed_meanwhile_stays(broker, topics):
    broker.server.command("HSET", topics, "T", "changed")
    assert alter(broker, topics, "old", "new") == 0
    assert broker.server.command("HGET", topics, "T") == b"changed"


def test_one_that_is_gone_is_not_made_again(broker, topics):
    assert alter(broker, topics, "old", "new") == 0
    assert broker.server.command("EXISTS", topics) == 0


def test_one_that_is_not_there_is_made_if_none_was_read(broker, topics):
    assert [alter(broker, topics, "", new) for new in ("new", "other")] == [1, 0]
    assert broker.server.command("HGET", topics, "T") == b"new"


def test_an_empty_new_one_deletes_it(broker, topics):
    broker.server.command("HSET", topics, "T", "old", "Other", "kept")
    assert alter(broker, topics, "old", "") == 1
    assert broker.server.client.hgetall(topics) == {b"Other": b"kept"}


@pytest.mark.parametrize("new", ["new", ""])
def test_a_call_that_is_repeated_finds_its_work(broker, topics, new):
    broker.server.command("HSET", topics, "T", "old")
    assert [alter(broker, topics, "old", new) for _ in range(2)] == [1, 2]
    assert broker.server.command("HGET", topics, "T") == (new.encode() or None)
