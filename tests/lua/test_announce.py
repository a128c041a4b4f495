"""Announcing: what a Redis that falls back forgets, so that nothing is concluded by mistake."""

import pytest

from rmq_spark.client import connect
from rmq_spark.protocol.staging import Manifest

from .staged import QUERY, Book

FIRST, SECOND = (Manifest({name: {"T": {0: 3}}}) for name in ("q:1:0:a", "q:1:0:b"))


def test_a_sealed_batch_is_announced_and_its_manifest_stays(book, slot, key):
    book.seal(1, FIRST)
    assert book.announce(1, FIRST, "a")
    assert slot.redis.hget(key, "announced") == b"a"
    assert book.last().pending == FIRST


@pytest.mark.parametrize("batch", [0, 2])
def test_another_batch_is_not(book, slot, key, batch):
    book.seal(1, FIRST)
    assert not book.announce(batch, FIRST, "a")
    assert not slot.redis.hexists(key, "announced")


def test_another_manifest_is_not(book, slot, key):
    """By a driver thought dead, whose batch was unsealed and sealed anew."""
    book.seal(1, SECOND)
    assert not book.announce(1, FIRST, "a")
    assert not slot.redis.hexists(key, "announced")


def test_a_concluded_batch_needs_none(book, slot, key):
    book.seal(1, FIRST)
    book.announce(1, FIRST, "a")
    book.conclude(1, "a")
    before = slot.redis.dump(key)
    assert book.announce(1, SECOND, "b")
    assert slot.redis.dump(key) == before


def test_nothing_is_made_where_nothing_was_sealed(book, slot, key):
    assert not book.announce(1, FIRST, "a")
    assert not slot.redis.exists(key)


def test_a_full_server_lets_it_through(own_redis):
    broker = connect(own_redis.url, patience_s=2)
    book = Book(broker.server, QUERY)
    book.seal(1, FIRST)
    broker.server.client.config_set("maxmemory", 1)
    assert book.announce(1, FIRST, "a")
    assert book.conclude(1, "a")
    broker.close()
