"""Concluding: everything of a sealed batch is published."""

import pytest

from rmq_spark.protocol.staging import FORGET_STAGES_MS, Manifest

from .staged import QUERY, Book

SEALED = Manifest({"q:1:0:a": {"T": {0: 3}}}, messages=3)


def sealed(book, batch=1):
    """Seals a batch and announces that it will be concluded."""
    book.seal(batch, SEALED)
    assert book.announce(batch, SEALED, "a")


def test_the_manifest_goes_and_the_numbers_stay(book, slot, key):
    sealed(book)
    assert book.conclude(1, "a")
    assert slot.redis.hgetall(key) == {b"batch": b"1", b"messages": b"3"}


def test_it_may_be_repeated(book):
    sealed(book)
    assert [book.conclude(1, "a"), book.conclude(1, "a")] == [True, True]


@pytest.mark.parametrize("batch", [0, 2])
def test_another_batch_is_left_alone(book, batch):
    sealed(book)
    assert not book.conclude(batch, "a")
    assert book.last().pending == SEALED


def test_a_batch_that_was_not_announced_is_left_alone(book):
    book.seal(1, SEALED)
    assert not book.conclude(1, "a")
    assert book.last().pending == SEALED


def test_a_batch_that_another_driver_has_announced_since_is_left_alone(book):
    sealed(book)
    assert book.announce(1, SEALED, "b")
    assert not book.conclude(1, "a")
    assert book.last().pending == SEALED
    assert book.conclude(1, "b")


def test_nothing_is_made_where_nothing_was_sealed(book, slot, key):
    assert not book.conclude(1, "a")
    assert not slot.redis.exists(key)


def test_a_sink_that_is_not_used_any_more_is_forgotten_after_30_days(book, slot, key):
    sealed(book)
    book.conclude(1, "a")
    assert 0 <= FORGET_STAGES_MS - slot.redis.pttl(key) < 60_000
    assert FORGET_STAGES_MS == 30 * 24 * 3600 * 1000


def test_a_sink_to_be_kept_stays(slot, key):
    kept = Book(slot.queue.server, QUERY, slot.broker.key_prefix, forget_ms=0)
    sealed(kept)
    assert kept.conclude(1, "a")
    assert slot.redis.pttl(key) == -1
    kept.seal(2, SEALED)
    assert kept.unseal(2, SEALED)
    assert slot.redis.pttl(key) == -1
