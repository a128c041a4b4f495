"""What every script meets: keys of another type, records of another version, a flushed cache."""

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import ScriptFailed, WrongKeyType
from rmq_spark.protocol import claiming, reading, returning, scripts, sending
from rmq_spark.protocol import sending as build
from rmq_spark.protocol.calls import ALL_KINDS, Call
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.protocol.staging import Manifest
from rmq_spark.topics.keys import consumer_key, sink_key, topics_key

from ..seeding import LONG_MS, Slot, note_committed, numbered, open_run, requeue
from .staged import NAME, QUERY, Book, Stages

LEFT = "claims consumers"
OTHER_QUERY = "another-query"
MANIFEST = Manifest({NAME: {"T": {0: 1}}})


def busy(slot):
    """Gives a slot something in each queue, so that every script has something to write."""
    slot.put_due(numbered(6))
    slot.put({b"retried": 4})
    slot.claim("b", limit=3)
    slot.claim("a", limit=2)
    slot.claim("gone")
    slot.redis.hset(slot.keys.consumers(0), "gone", "1 0 1 0 1 - -")
    slot.queue.ask(claiming.release, [0], "b", 1)
    slot.bury(b"dead")
    slot.put_waiting({b"waiting": 5_004})
    open_run(slot.queue, "a", 0)
    note_committed(slot.queue, "a", 1)
    stages = Stages(slot)
    stages.put([b"staged"])
    stages.book.seal(1, MANIFEST)
    stages.book.announce(1, MANIFEST, "a")


def call_of(slot, name):
    """The call of each script that would change something in a busy slot (or read it)."""
    queue, a = slot.queue, "a"
    stages = Stages(slot)
    held = slot.claim(a, limit=2).contents
    calls = {
        "alter": lambda: slot.broker.alter(queue.definition.name, max_retries=3),
        "announce": lambda: stages.book.announce(1, MANIFEST, "another"),
        "cancel": lambda: queue.cancel({0: [numbered(6)[5], b"waiting"]}),
        "any_due": lambda: queue.ask(reading.any_due, range(1), one_node=True),
        "claim": lambda: slot.claim(a, seq=2),
        "commit": lambda: slot.commit(a),
        "conclude": lambda: stages.book.conclude(1, "a"),
        "discard": lambda: stages.discard({0: [NAME]}),
        "counts": lambda: queue.ask(reading.counts, [0], [5_000]),
        "due": lambda: queue.ask(reading.due, [0], a),
        "expire": lambda: queue.expire(),
        "figures": lambda: queue.figures(),
        "find": lambda: queue.find({0: [b"waiting"]}),
        "forget": lambda: forget_dead(queue),
        "drop": lambda: queue.ask(returning.drop),
        "give_back": lambda: queue.server.pipeline([give_back_of(queue, "b:1:0")]),
        "abandon": lambda: queue.server.call("abandon", queue.queues.keys_of(0, LEFT), [a, 1, 1]),
        "begin_run": lambda: open_run(queue, a, 5),
        "move": lambda: queue.move({0: [b"waiting"]}, delay="1h"),
        "grant": lambda: queue.server.call("grant", [slot.keys.rate()], [1, 1000, 5, 1, 1]),
        "occur": lambda: queue.ask(sending.occur, 0, "s", ("", "1 2"), (500, b"waiting", b"")),
        "page": lambda: list(queue.pages(QueueKind.PREPARE, 0)),
        "pause": lambda: queue.ask(claiming.pause, None),
        "plan": lambda: queue.ask(claiming.plan, [0], a, 1, "mark"),
        "publish": lambda: stages.publish({NAME: 1}),
        "purge": lambda: queue.purge({0: [b"dead"]}),
        "release": lambda: slot.release(a),
        "renew": lambda: queue.ask(claiming.renew, [0], a, 1, 2 * LONG_MS),
        "replay": lambda: queue.ask(claiming.replay, a, 2, 0, 1, 2 * LONG_MS),
        "requeue": lambda: requeue(queue, 0, [b"dead"], 500),
        "rollback": lambda: slot.rollback(held),
        "seal": lambda: other_book(slot).seal(1, Manifest({})),
        "send_first": lambda: queue.server.pipeline([send_of("send_first", slot)]),
        "send_last": lambda: queue.server.pipeline([send_of("send_last", slot)]),
        "send_at": lambda: queue.server.pipeline([send_of("send_at", slot, 500)]),
        "note_committed": lambda: note_committed(queue, a, 9),
        "stirred": lambda: queue.ask(reading.stirred, [0], one_node=True),
        "stage": lambda: stages.put([b"more"], held=1),
        "waiting": lambda: queue.ask(reading.waiting, [0], "bytes"),
        "unread": lambda: queue.ask(claiming.unread, [0], a, 1, 1),
        "unseal": lambda: stages.book.unseal(1, MANIFEST),
    }
    return calls[name]


def give_back_of(queue, name):
    return returning.give_back_call(queue.queues, 0, name)


def forget_dead(queue):
    return queue.server.call("forget", queue.queues.keys_of(0, KEYS["forget"]), [1])


def other_book(slot):
    return Book(slot.queue.server, OTHER_QUERY, slot.broker.key_prefix)


def send_of(name, slot, *lowest):
    keys = slot.queue.queues.keys_of(0, "store retry stats bodies")
    return Call(name, keys, [1, 0, 7, "", *lowest], [500, b"waiting"])


# Beside the kinds of keys: claim_a and claim_b are those claims, *_bodies their bodies; new,
# new_bodies, part, rest and rest_bodies keys that must not be there.
KEYS = {
    "alter": "topics",
    "announce": "sink",
    "cancel": "store retry stats bodies",
    "claim": f"{ALL_KINDS} new new_bodies part claim_a claim_b",
    "commit": "claims consumers stats",
    "conclude": "sink",
    "discard": "stages stage",
    "any_due": "store",
    "counts": "store",
    "drop": "claims",
    "due": "store retry claims consumers",
    "expire": "claims consumers",
    "figures": "store retry dead claims stats consumers",
    "find": "store retry dead deaths bodies claims claim_a claim_b claim_b_bodies",
    "forget": "dead deaths stats",
    "give_back": f"{ALL_KINDS} claim_b claim_b_bodies rest rest_bodies",
    "abandon": "claims consumers",
    "begin_run": "consumer",
    "move": "store retry stats",
    "grant": "rate",
    "occur": "schedules store retry stats bodies",
    "page": "claim_b claim_b_bodies",
    "pause": "consumers",
    "plan": "consumers",
    "publish": "stage stages store retry stats bodies",
    "purge": "dead stats deaths",
    "release": "claims consumers",
    "renew": "claims consumers",
    "replay": "claims consumers",
    "requeue": "store retry dead deaths stats bodies",
    "rollback": f"{ALL_KINDS} claim_a claim_a_bodies",
    "seal": "other_sink",
    "send_first": "store retry stats bodies",
    "send_last": "store retry stats bodies",
    "send_at": "store retry stats bodies",
    "note_committed": "consumer",
    "stage": "stage stages",
    "stirred": "store",
    "unread": "claims consumers",
    "waiting": "store retry stats bodies",
    "unseal": "sink",
}
NAMES = scripts.script_names(scripts._lua_folder())
READ_ONLY = {"any_due", "counts", "due", "figures", "find", "page", "stirred", "waiting"}


def key_named(slot, kind):
    prefix = slot.broker.key_prefix
    named = {
        "topics": topics_key(prefix),
        "consumer": consumer_key("a", prefix),
        "sink": sink_key(QUERY, prefix),
        "other_sink": sink_key(OTHER_QUERY, prefix),
        "rate": slot.keys.rate(),
        "stage": slot.keys.stage(0, NAME),
        "claim_a": slot.keys.claim(0, "a:1:0"),
        "claim_b": slot.keys.claim(0, "b:1:0"),
        "new": slot.keys.claim(0, "a:2:0"),
        "rest": slot.keys.claim(0, "~b:1:0"),
        "rest_bodies": slot.keys.claim_bodies(0, "~b:1:0"),
        "claim_a_bodies": slot.keys.claim_bodies(0, "a:1:0"),
        "claim_b_bodies": slot.keys.claim_bodies(0, "b:1:0"),
        "new_bodies": slot.keys.claim_bodies(0, "a:2:0"),
    }
    return named[kind] if kind in named else getattr(slot.keys, kind)(0)


def everything(slot):
    others = ["topics", "consumer", "sink", "other_sink", "stage"]
    return slot.dump() | {
        key: slot.redis.dump(key) for key in (key_named(slot, kind) for kind in others)
    }


@pytest.fixture
def slot(broker):
    made = Slot(broker, "T", "FixedTime")
    busy(made)
    return made


def test_the_tables_here_name_every_script():
    assert sorted(KEYS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_busy_slot_gives_every_script_something_to_do(slot, name):
    """Else the tests below would prove nothing."""
    call = call_of(slot, name)
    before = everything(slot)
    call()
    assert (everything(slot) == before) == (name in READ_ONLY)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in NAMES for kind in KEYS[name].split()]
)
def test_a_key_of_another_type_is_named_before_anything_is_written(slot, name, kind):
    call = call_of(slot, name)
    key = key_named(slot, kind)
    slot.redis.delete(key)
    slot.redis.set(key, "somebody else's")
    before = everything(slot)
    if kind == "topics":
        call = lambda: slot.queue.server.call("alter", [key], ["T", "old", "new"])  # noqa: E731
    with pytest.raises(WrongKeyType) as raised:
        call()
    assert f"the key {key} holds a string" in str(raised.value)
    assert "set another key prefix" in str(raised.value)
    assert everything(slot) == before


OTHER_RECORDS = ["1 1 1 1 1 1", "0 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1 1 1 1"]
OTHER_RECORDS += ["1 1 1 1 1 1 1 1 1 1 1 1 1", "2 1 1 1 1 1 1 1 1 1 1 1", "text", ""]
# It deletes whatever it finds.
READ_NO_RECORDS = {"drop"}
# Two read only the record of the claim that they are for.
READ_ONE_RECORD = {"give_back": "b:1:0", "rollback": "a:1:0"}


@pytest.mark.parametrize("text", OTHER_RECORDS)
@pytest.mark.parametrize(
    "name", [name for name in NAMES if "claims" in KEYS[name] and name not in READ_NO_RECORDS]
)
def test_a_record_of_another_version_is_refused_before_anything_is_written(slot, name, text):
    call = call_of(slot, name)
    record = READ_ONE_RECORD.get(name, "a:7:0")
    slot.redis.hset(slot.keys.claims(0), record, text)
    before = everything(slot)
    with pytest.raises(ScriptFailed, match=f"record {record} .* another version of rmq-spark"):
        call()
    assert everything(slot) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_flushed_script_cache_goes_unnoticed(own_redis, name):
    broker = connect(own_redis.url, patience_s=2)
    slot = Slot(broker, "T", "FixedTime")
    busy(slot)
    call = call_of(slot, name)
    broker.server.client.script_flush()
    before = everything(slot)
    call()
    assert (everything(slot) == before) == (name in READ_ONLY)
    broker.close()


def test_a_script_cache_that_is_flushed_again_and_again_is_loaded_again(own_redis):
    """Such as by a server that is restarted, or a replica that takes over, once more."""
    broker = connect(own_redis.url, patience_s=2)
    slot = Slot(broker, "T", "FixedTime")
    slot.put_due([b"m"])
    server, flushes = broker.server, iter(range(2))
    load = server._load

    def load_and_flush():
        load()
        if next(flushes, None) is not None:
            server.client.script_flush()

    server.client.script_flush()
    server._load = load_and_flush
    assert slot.claimed() == [b"m"]
    broker.close()


def test_a_cache_flushed_between_two_scripts_of_a_pipeline_repeats_only_the_second(own_redis):
    """The first ran: sent again it would be counted twice."""
    broker = connect(own_redis.url, patience_s=2)
    broker.create("T", "FixedTime", 2)
    queue = broker.queue("T")
    queue.send([b"warm"], fixed_time=500)
    (one,) = build.send(queue.queues, {0: [500, b"m"]}).calls
    broker.server.client.script_flush()
    broker.server._load_one(broker.server._scripts["send_at"])
    other = [queue.keys.claims(1), queue.keys.consumers(1), queue.keys.stats(1)]
    replies = broker.server.pipeline([one, Call("replay", other, ["a", 1, 0, 1, 1000])])
    assert replies == [[1, 0, 0], []]
    assert queue.figures().counters["accepted"] == 2
    broker.close()
