"""What every script meets: keys of another type, records of another version, a flushed cache."""

import pytest
from seeding import LONG_MS, numbered

from rmq_spark.queue import scripts
from rmq_spark.queue.errors import ScriptFailed, WrongKeyType
from rmq_spark.queue.topic import consumer_key, topics_key


def busy(slot):
    """Gives a slot something in each queue, so that every script has something to write."""
    slot.put_due(numbered(6))
    slot.put({b"retried": 4})
    slot.claim("b", limit=3)
    slot.claim("a", limit=2)
    slot.queue.release([0], "b", 1)
    slot.bury(b"dead")
    slot.put_waiting({b"waiting": 5_004})
    slot.queue.open_run("a", 1)
    slot.queue.settle("a", 1)


def call_of(slot, name):
    """The call of each script that would change something in a busy slot (or read it)."""
    queue, a = slot.queue, "a"
    held = slot.claim(a, limit=2).contents
    calls = {
        "alter": lambda: slot.broker.alter(queue.definition.name, max_retries=3),
        "cancel": lambda: queue.cancel({0: [numbered(6)[5], b"waiting"]}),
        "claim": lambda: slot.claim(a, seq=2),
        "commit": lambda: slot.commit(a),
        "due": lambda: queue.due([0], a),
        "expire": lambda: queue.expire(),
        "figures": lambda: queue.figures(),
        "open": lambda: queue.open_run(a, 5),
        "release": lambda: slot.release(a),
        "renew": lambda: queue.renew([0], a, 1, 2 * LONG_MS),
        "replay": lambda: queue.replay(a, 2, 0, 1, 2 * LONG_MS),
        "requeue": lambda: queue.requeue(0, [b"dead"], 500),
        "rollback": lambda: slot.rollback(held),
        "send_first": lambda: queue.server.call("send_first", send_keys(slot), [5, b"waiting"]),
        "send_last": lambda: queue.server.call("send_last", send_keys(slot), [500, b"waiting"]),
        "settle": lambda: queue.settle(a, 9),
        "unread": lambda: queue.unread([0], a, 1, 1),
    }
    return calls[name]


def send_keys(slot):
    return [slot.keys.store(0), slot.keys.retry(0), slot.keys.stats(0)]


KEYS = {
    "alter": "topics",
    "cancel": "store retry stats",
    "claim": "store prepare retry dead claims first consumers stats",
    "commit": "prepare claims first consumers stats",
    "due": "store prepare retry claims consumers",
    "expire": "store prepare retry dead claims first consumers stats",
    "figures": "store prepare retry dead claims",
    "open": "consumer",
    "release": "claims consumers",
    "renew": "claims consumers",
    "replay": "claims consumers",
    "requeue": "store retry dead stats",
    "rollback": "store prepare retry dead claims first stats",
    "send_first": "store retry stats",
    "send_last": "store retry stats",
    "settle": "consumer",
    "unread": "claims consumers",
}
READ_ONLY = {"due", "figures"}


def key_named(slot, kind):
    if kind == "topics":
        return topics_key(slot.broker.key_prefix)
    if kind == "consumer":
        return consumer_key("a", slot.broker.key_prefix)
    return getattr(slot.keys, kind)(0)


def everything(slot):
    own = [topics_key(slot.broker.key_prefix), consumer_key("a", slot.broker.key_prefix)]
    return slot.dump() | {key: slot.redis.dump(key) for key in own}


@pytest.fixture
def slot(broker):
    from seeding import Slot

    made = Slot(broker, "T", "FixedTime")
    busy(made)
    return made


def test_the_tables_here_name_every_script():
    assert sorted(KEYS) == sorted(scripts.NAMES)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_busy_slot_gives_every_script_something_to_do(slot, name):
    """Else the tests below would prove nothing."""
    call = call_of(slot, name)
    before = everything(slot)
    call()
    assert (everything(slot) == before) == (name in READ_ONLY)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in scripts.NAMES for kind in KEYS[name].split()]
)
def test_a_key_of_another_type_is_named_before_anything_is_written(slot, name, kind):
    call = call_of(slot, name)
    key = key_named(slot, kind)
    slot.redis.delete(key)
    slot.redis.rpush(key, "somebody else's")
    before = everything(slot)
    if kind == "topics":
        call = lambda: slot.queue.server.call("alter", [key], ["T", "old", "new"])  # noqa: E731
    with pytest.raises(WrongKeyType) as raised:
        call()
    assert f"the key {key} holds a list" in str(raised.value)
    assert "keyPrefix" in str(raised.value)
    assert everything(slot) == before


@pytest.mark.parametrize("text", ["2 1 1 1 1 1", "1 1 1 1 1", "text", "", "1 1 1 1 1 1 1"])
@pytest.mark.parametrize("name", [name for name in scripts.NAMES if "claims" in KEYS[name]])
def test_a_record_of_another_version_is_refused_before_anything_is_written(slot, name, text):
    call = call_of(slot, name)
    slot.redis.hset(slot.keys.claims(0), "a:7:0", text)
    before = everything(slot)
    with pytest.raises(ScriptFailed, match=r"record a:7:0 .* another version of rmq-spark"):
        call()
    assert everything(slot) == before


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_flushed_script_cache_goes_unnoticed(own_redis, name):
    from seeding import Slot

    from rmq_spark.queue import connect

    broker = connect(own_redis.url, patience_s=2)
    slot = Slot(broker, "T", "FixedTime")
    busy(slot)
    call = call_of(slot, name)
    broker.server.client.script_flush()
    before = everything(slot)
    call()
    assert (everything(slot) == before) == (name in READ_ONLY)
    broker.close()


def test_a_cache_flushed_between_two_scripts_of_a_pipeline_repeats_only_the_second(own_redis):
    """The first ran: sent again it would be counted twice."""
    from rmq_spark.queue import connect

    broker = connect(own_redis.url, patience_s=2)
    broker.create("T", "FixedTime", 2)
    queue = broker.queue("T")
    queue.send([b"warm"], fixed_time=500)
    one = queue._send_call(0, [500, b"m"])
    broker.server.client.script_flush()
    broker.server._load_one(broker.server._scripts["send_last"])
    other = [queue.keys.claims(1), queue.keys.consumers(1)]
    from rmq_spark.queue.server import Call

    replies = broker.server.pipeline([one, Call("replay", other, ["a", 1, 0, 1, 1000])])
    assert replies == [[1, 0], []]
    assert queue.figures().counters["accepted"] == 2
    broker.close()
