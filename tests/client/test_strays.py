"""Claims whose record was deleted by hand: found, named and given back, and never overwritten."""

import pytest

from rmq_spark.client import Broker
from rmq_spark.client.receiving.consumer import Consumer
from rmq_spark.client.repair import claim_keys, give_back_strays, queues_with_strays, stray_claims
from rmq_spark.errors import LeaseLost, ScriptFailed
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.claims import ClaimRequest

from ..seeding import LONG_MS, Slot, numbered


@pytest.fixture
def strays(broker):
    """A slot with two claims; the record of the first is gone."""
    slot = Slot(broker, "T")
    slot.put_due(numbered(10))
    slot.claim("a", limit=4)
    slot.claim("b", limit=3)
    slot.redis.hdel(slot.keys.claims(0), "a:1:0")
    return slot


def strays_of(queue):
    return stray_claims(queue, claim_keys(queue.server, queue.key_prefix))


def test_only_a_claim_without_a_record_is_found(strays):
    assert strays_of(strays.queue) == [(0, "a:1:0")]


def test_its_messages_are_given_back_as_they_were(strays):
    assert give_back_strays(strays.queue) == 4
    waiting = [*range(4), *range(7, 10)]
    assert strays.store == {numbered(10)[n]: 1000 + n for n in waiting}
    assert strays_of(strays.queue) == []
    strays.check_conservation()


def test_a_newer_copy_wins(strays):
    strays.queue.send([numbered(1)[0]], fixed_time=5000)
    assert give_back_strays(strays.queue) == 4
    assert strays.store[numbered(1)[0]] == 5000
    strays.check_conservation()


def test_a_claim_of_its_name_changes_nothing_and_names_the_remedy(strays):
    strays.redis.delete(strays.keys.consumers(0))  # else the claim is known to be lost
    before = strays.dump()
    with pytest.raises(ScriptFailed, match=r"RMQ_STRAYCLAIM.*prepare_.*a:1:0.*rmq expire"):
        strays.claim("a")
    assert strays.dump() == before


def test_a_claim_whose_messages_were_deleted_is_lost(broker):
    slot = Slot(broker, "T")
    slot.put_due(numbered(10))
    slot.claim("a")
    slot.redis.delete(slot.keys.claim(0, "a:1:0"))
    with pytest.raises(LeaseLost, match="should hold 10 messages, but Redis has 0"):
        slot.claim("a")


@pytest.mark.parametrize("prefix", ["", "shop:", "a*b?[c]:"])
@pytest.mark.parametrize("group", ["", "audit"])
def test_other_topics_groups_and_prefixes_are_left_alone(broker, prefix, group):
    broker = Broker(broker.server, key_prefix=broker.key_prefix + prefix)
    queues = []
    for name in ("T", "T.2", "prepare_T"):
        broker.create(name, "FixedTime", 2, groups=["", "audit"])
        for of_group in ("", "audit"):
            queue = broker.queue(name, group=of_group)
            if not of_group:  # a send goes to all groups
                queue.send(numbered(6), fixed_time=1000)
            terms = claiming.Claiming("c", 1, 1, LONG_MS)
            queue.ask(claiming.claim, [ClaimRequest(slot, 0) for slot in queue.slots], terms)
            queues.append(queue)
    mine = broker.queue("T", group=group)
    for slot in mine.slots:
        broker.server.client.hdel(mine.keys.claims(slot), "c:1:0")
    assert [name for _, name in strays_of(mine)] == ["c:1:0"] * 2
    assert [strays_of(other) for other in queues if other.keys != mine.keys] == [[]] * 5
    having = queues_with_strays(broker.server, broker.key_prefix, queues)
    assert [queue.keys for queue in having] == [mine.keys]
    assert give_back_strays(mine) == 6
    assert [slot.held for slot in mine.ask(reading.due, mine.slots, "d")] == [0, 0]


def test_messages_of_a_consumer_that_goes_on_are_not_strays(broker):
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send(numbered(3), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        assert isinstance(consumer, Consumer)
        consumer.poll(limit=2)
        assert strays_of(queue) == []
