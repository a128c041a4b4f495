"""Concluding: everything of a sealed batch is published."""

import pytest
from staged import QUERY, Stages

from rmq_spark.queue.staging import FORGET_STAGES_MS, Manifest
from rmq_spark.queue.topic import sink_key

SEALED = Manifest({"q:1:0:a": {"T": [0]}}, messages=3)


@pytest.fixture
def book(slot):
    return Stages(slot).book


def conclude(slot, batch):
    key = sink_key(QUERY, slot.broker.key_prefix)
    return slot.queue.server.call("conclude", [key], [batch, FORGET_STAGES_MS])


def test_the_manifest_goes_and_the_numbers_stay(book, slot):
    book.seal(1, SEALED)
    assert conclude(slot, 1) == 1
    key = sink_key(QUERY, slot.broker.key_prefix)
    assert slot.redis.hgetall(key) == {b"batch": b"1", b"messages": b"3"}


def test_it_may_be_repeated(book, slot):
    book.seal(1, SEALED)
    assert [conclude(slot, 1), conclude(slot, 1)] == [1, 1]


@pytest.mark.parametrize("batch", [0, 2])
def test_another_batch_is_left_alone(book, slot, batch):
    book.seal(1, SEALED)
    assert conclude(slot, batch) == 0
    assert book.pending() == SEALED


def test_nothing_is_made_where_nothing_was_sealed(slot):
    assert conclude(slot, 1) == 0
    assert not slot.redis.exists(sink_key(QUERY, slot.broker.key_prefix))


def test_a_sink_that_is_not_used_any_more_is_forgotten_after_30_days(book, slot):
    book.seal(1, SEALED)
    conclude(slot, 1)
    left_ms = slot.redis.pttl(sink_key(QUERY, slot.broker.key_prefix))
    assert 0 <= FORGET_STAGES_MS - left_ms < 60_000
    assert FORGET_STAGES_MS == 30 * 24 * 3600 * 1000
