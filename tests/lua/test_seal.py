"""Sealing: the one write that decides what a batch of an exactly-once sink consists of."""

import pytest

from rmq_spark.errors import CheckpointRefused, ScriptFailed
from rmq_spark.protocol.staging import Manifest, Sealed

FIRST, SECOND = (Manifest({name: {"T": {5: 70, 10: 7}}}) for name in ("q:1:0:a", "q:1:0:b"))


def conclude(book, batch, manifest):
    assert book.announce(batch, manifest, "a")
    assert book.conclude(batch, "a")


def test_the_first_manifest_of_a_batch_stays(book):
    assert book.seal(1, FIRST) == (1, FIRST)
    assert book.seal(1, SECOND) == (1, FIRST)
    assert book.last().pending == FIRST


def test_a_concluded_batch_has_nothing_more_to_publish(book):
    book.seal(1, FIRST)
    conclude(book, 1, FIRST)
    assert book.seal(1, SECOND) == (1, Manifest({}))
    assert book.last().pending == Manifest({})


def test_the_last_batch_and_its_number_of_messages_are_known(book):
    assert book.last() == Sealed(-1, None, Manifest({}))
    for batch, manifest in (1, Manifest(FIRST.stages, 30)), (2, Manifest(SECOND.stages, 20)):
        book.seal(batch, manifest)
        assert book.last() == Sealed(batch, manifest.messages, manifest)
        book.seal(batch, Manifest({}, 5))
        conclude(book, batch, manifest)
        assert book.last() == Sealed(batch, manifest.messages, Manifest({}))


def test_later_batches_follow_whatever_numbers_lie_between(book):
    for batch in (0, 1, 7):
        assert book.seal(batch, FIRST) == (batch, FIRST)
        conclude(book, batch, FIRST)


def test_an_earlier_batch_that_is_not_published_comes_first(book):
    book.seal(1, FIRST)
    assert book.seal(2, SECOND) == (1, FIRST)
    conclude(book, 1, FIRST)
    assert book.seal(2, SECOND) == (2, SECOND)


@pytest.mark.parametrize("concluded", [True, False])
def test_a_batch_before_the_sealed_one_is_refused(book, slot, key, concluded):
    book.seal(7, FIRST)
    if concluded:
        conclude(book, 7, FIRST)
    before = slot.redis.dump(key)
    with pytest.raises(CheckpointRefused, match="batch 6 is repeated, but batch 7 was sent") as e:
        book.seal(6, SECOND)
    assert "checkpoint" in str(e.value)
    assert slot.redis.dump(key) == before


def test_a_sealed_batch_does_not_lapse_before_it_is_concluded(book, slot, key):
    book.seal(1, FIRST)
    conclude(book, 1, FIRST)
    book.seal(2, FIRST)
    assert slot.redis.pttl(key) == -1


def test_a_manifest_that_was_read_has_the_digest_of_what_redis_keeps(book):
    """In it a slot is a text: 10 comes before 5."""
    written = Manifest({"q:1:0:a": {"T-\u00fc": {5: 70, 10: 7}, "S": {0: 1}}, "q:1:1:b": {}}, 78)
    book.seal(1, written)
    assert book.last().pending == written
    assert book.announce(1, book.last().pending, "a")


def test_a_manifest_of_another_version_is_refused(book, slot, key):
    slot.redis.hset(key, mapping={"batch": 1, "manifest": '{"version": 1}'})
    with pytest.raises(ScriptFailed, match="another version of rmq-spark"):
        book.seal(1, FIRST)
