"""A message that is committed later than one behind it."""

import pytest

from rmq_spark.client import Message
from rmq_spark.errors import InvalidOption

from ..waiting import wait_until


@pytest.fixture
def keyed(empty_shop):
    empty_shop.broker.create("Orders", "FixedTime", slot_amount=1, keyed=True)
    empty_shop.outbox().create_tables()
    return empty_shop


def send(shop, connection, payload):
    shop.outbox().send(connection, [Message(payload, key="k", fixed_time=0)])


def relay_one(shop):
    """Relays one message, as soon as no work of the server itself is an open transaction."""
    assert wait_until(lambda: shop.relay(ordered=True).sent, "no older one is open") == 1


def payloads(shop):
    return [entry.content for entry in shop.entries()]


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_committed_last_comes_last_unless_the_relay_waits(keyed, ordered):
    if ordered and not keyed.is_postgresql:
        with pytest.raises(InvalidOption, match="an outbox in PostgreSQL"):
            keyed.relay(ordered=True)
        return
    first, second = keyed.connect(), keyed.connect()
    send(keyed, first, "old")
    send(keyed, second, "new")
    second.commit()
    done = keyed.relay(ordered=ordered)
    assert payloads(keyed) == ([] if ordered else [b"new"])
    assert done.sent == (0 if ordered else 1)
    first.commit()
    wait_until(lambda: keyed.relay(ordered=ordered).sent, "no transaction is open")
    assert payloads(keyed) == ([b"new"] if ordered else [b"old"])
    for connection in (first, second):
        connection.close()


def test_what_began_later_holds_nothing_back(keyed):
    if not keyed.is_postgresql:
        pytest.skip("only PostgreSQL shows which transactions are open")
    first, second = keyed.connect(), keyed.connect()
    send(keyed, first, "old")
    send(keyed, second, "new")
    first.commit()
    relay_one(keyed)
    assert payloads(keyed) == [b"old"]
    second.commit()
    relay_one(keyed)
    assert payloads(keyed) == [b"new"]
    for connection in (first, second):
        connection.close()
