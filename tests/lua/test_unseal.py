"""Unsealing: a batch of which a stage is lost can be staged and sealed anew."""

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import CheckpointRefused
from rmq_spark.protocol.staging import FORGET_STAGES_MS, Manifest, Sealed

from .staged import QUERY, Book

FIRST, SECOND = (Manifest({name: {"T": {0: 3}}}, 3) for name in ("q:1:0:a", "q:1:0:b"))


@pytest.mark.parametrize("batch", [0, 7])
def test_the_batch_can_be_sealed_anew(book, batch):
    book.seal(batch, FIRST)
    assert book.unseal(batch, FIRST)
    assert book.last() == Sealed(batch - 1)
    assert book.seal(batch, SECOND) == (batch, SECOND)


def test_batches_before_the_one_before_it_stay_refused(book):
    book.seal(7, FIRST)
    book.unseal(7, FIRST)
    with pytest.raises(CheckpointRefused, match="batch 5 is repeated, but batch 6"):
        book.seal(5, SECOND)


def test_nothing_of_an_announcement_is_left(book, slot, key):
    book.seal(7, FIRST)
    book.announce(7, FIRST, "a")
    book.unseal(7, FIRST)
    assert slot.redis.hgetall(key) == {b"batch": b"6"}


@pytest.mark.parametrize(("batch", "manifest"), [(0, FIRST), (2, FIRST), (1, SECOND)])
def test_what_is_sealed_otherwise_is_left_alone(book, slot, key, batch, manifest):
    book.seal(1, FIRST)
    before = slot.redis.dump(key)
    assert not book.unseal(batch, manifest)
    assert slot.redis.dump(key) == before


def test_a_concluded_batch_stays(book, slot, key):
    book.seal(1, FIRST)
    book.announce(1, FIRST, "a")
    book.conclude(1, "a")
    before = slot.redis.dump(key)
    assert not book.unseal(1, FIRST)
    assert slot.redis.dump(key) == before


def test_nothing_is_made_where_nothing_was_sealed(book, slot, key):
    assert not book.unseal(1, FIRST)
    assert not book.unseal(-1, FIRST)
    assert not slot.redis.exists(key)


def test_a_query_that_does_not_come_back_is_forgotten_after_30_days(book, slot, key):
    book.seal(1, FIRST)
    book.unseal(1, FIRST)
    assert 0 <= FORGET_STAGES_MS - slot.redis.pttl(key) < 60_000


def test_a_full_server_lets_it_through(own_redis):
    broker = connect(own_redis.url, patience_s=2)
    book = Book(broker.server, QUERY)
    book.seal(1, FIRST)
    broker.server.client.config_set("maxmemory", 1)
    assert book.unseal(1, FIRST)
    broker.close()
