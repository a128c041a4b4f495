"""Topics made, found, changed, listed and deleted."""

import asyncio
import contextlib
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from rmq_spark import Message, aio
from rmq_spark.client import Broker, TopicType, administration, connect
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.schedules import seen
from rmq_spark.client.staging import stage
from rmq_spark.errors import (
    GroupNotEmpty,
    InvalidMessage,
    InvalidOption,
    NotReplicated,
    ServerUnsuitable,
    TopicMismatch,
    UnknownTopic,
    WrongKeyType,
)
from rmq_spark.inspect.checks import check_topics
from rmq_spark.inspect.figures import look
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.protocol.sending import SendResult
from rmq_spark.protocol.staging import Manifest, StageName
from rmq_spark.topics.keys import consumer_key, topics_key

from ..logs import logged
from ..seeding import LONG_MS, numbered, open_run, rollback
from ..waiting import wait_until


def all_keys(broker):
    return sorted(broker.server.client.keys(f"{broker.key_prefix}*"))


def test_the_first_use_defines_a_topic_and_later_ones_find_it(broker):
    made = broker.define("T", "priority", 8, max_retries=3, retry_backoff="1s", groups=("", "g"))
    assert (made.type, made.slot_amount, made.max_retries) == (TopicType.PRIORITY, 8, 3)
    assert broker.find("T") == broker.define("T") == broker.define("T", "Priority", "8") == made


def test_a_topic_has_64_slots_unless_told_otherwise(broker):
    assert broker.create("T", TopicType.FIXED_TIME).slot_amount == 64


def test_the_first_definition_stays_whoever_comes_second(broker):
    broker.create("T", "Priority", 8, max_retries=3)
    assert broker.create("T", "Priority", 8, max_retries=9).max_retries == 3


@pytest.mark.parametrize(
    ("topic_type", "amount", "asked"),
    [
        ("FixedTime", 8, "FixedTime"),
        ("FixedTime", 16, "FixedTime with 16 slots"),
        ("Priority", 16, "16 slots"),
        (None, 16, "16 slots"),
        ("FixedTime", None, "FixedTime"),
    ],
)
def test_a_definition_that_differs_is_an_error_showing_what_was_given(
    broker, topic_type, amount, asked
):
    broker.create("T", "Priority", 8)
    with pytest.raises(TopicMismatch) as raised:
        broker.define("T", topic_type, amount)
    assert str(raised.value).startswith(
        f"The topic T exists as Priority with 8 slots, but you asked for {asked}. "
    )
    assert "broker.queue('T')" in str(raised.value)
    assert str(raised.value).endswith(" delete T, or broker.delete('T').")
    assert broker.definition("T").slot_amount == 8


def test_a_topic_is_created_again_without_its_number_of_slots(broker):
    broker.create("T", "Priority", 8)
    assert broker.create("T", "Priority").slot_amount == 8


def test_a_new_topic_is_not_compared_with_the_names_of_all_others(broker):
    """Failed before: the 2000th took 60 times as long, for an error that was not raised."""

    def listed():
        return broker.server.client.info("commandstats").get("cmdstat_hkeys", {"calls": 0})["calls"]

    before = listed()
    broker.create("T", TopicType.FIXED_TIME)
    assert broker.find("U") is None
    assert listed() == before


def test_a_topic_that_is_not_there_is_unknown_and_not_created(broker):
    assert broker.find("T") is None
    for ask in (broker.definition, broker.define, broker.queue, broker.delete, broker.alter):
        with pytest.raises(UnknownTopic, match=r"The topic T does not exist on redis://127.0.0.1"):
            ask("T")
    assert all_keys(broker) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("a{b}", "Priority"), "topic="),
        (("", "Priority"), "topic="),
        (("T", "Other"), "^topic_type="),
        (("T", "Priority", 3), "^slot_amount=3"),
        (("T", "Priority", "many"), "^slot_amount='many'"),
    ],
)
def test_a_bad_definition_is_refused_and_writes_nothing(broker, arguments, named):
    with pytest.raises(InvalidOption, match=named):
        broker.create(*arguments)
    assert all_keys(broker) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_retries": 17}, "max_retries=17 "),
        ({"retry_backoff": "1s soon"}, "retry_backoff='soon' "),
        ({"retry_backoff": ""}, "retry_backoff='' "),
        ({"retry_backoff": "400d"}, "retry_backoff="),
        ({"groups": ()}, "groups="),
        ({"groups": ["a b"]}, "group='a b' "),
        ({"slots": 3}, "slots "),
    ],
)
def test_bad_settings_are_refused_by_their_keywords_and_write_nothing(broker, settings, named):
    with pytest.raises(InvalidOption, match=f"^{named}"):
        broker.create("T", "Priority", 8, **settings)
    assert all_keys(broker) == []


def test_a_bad_key_prefix_is_refused_by_its_keyword(redis_url):
    with pytest.raises(InvalidOption, match=r"^key_prefix='shop' is not accepted"):
        connect(redis_url, key_prefix="shop")


def test_a_wrong_name_of_the_number_of_slots_names_the_right_one(broker):
    with pytest.raises(
        InvalidOption, match=r"slots of a topic .* Accepted: slot_amount, max_retries, "
    ):
        broker.create("T", "Priority", slots=3)


def test_what_may_change_is_changed_and_the_rest_kept(broker):
    broker.create("T", "Priority", 8, max_retries=3)
    changed = broker.alter(
        "T", max_retries=5, retry_backoff="1s 2s", exclusive=True, paused=True, groups=("", "g")
    )
    assert changed == broker.definition("T")
    assert (changed.max_retries, changed.retry_backoff_ms) == (5, (1000, 2000))
    assert (changed.exclusive, changed.paused, changed.groups) == (True, True, ("", "g"))
    assert broker.alter("T", paused=False).max_retries == 5


@pytest.mark.parametrize(
    "change", [{"type": "FixedTime"}, {"slot_amount": 4}, {"topic_type": "FixedTime"}]
)
def test_what_is_fixed_for_ever_cannot_be_changed(broker, change):
    broker.create("T", "Priority", 8)
    with pytest.raises(InvalidOption, match=r"of a topic cannot be changed. Accepted: max_retries"):
        broker.alter("T", **change)


def test_a_change_made_meanwhile_by_another_is_kept(broker, monkeypatch):
    broker.create("T", "Priority", 8)
    other, calls = Broker(broker.server, key_prefix=broker.key_prefix), []
    call = type(broker.server).call

    def interfering(server, script, keys, args):
        calls.append(script)
        if len(calls) == 1:
            other.alter("T", paused=True)
        return call(server, script, keys, args)

    monkeypatch.setattr(type(broker.server), "call", interfering)
    changed = broker.alter("T", max_retries=2)
    assert calls == ["alter", "alter", "alter"]
    assert (changed.paused, changed.max_retries) == (True, 2)
    assert broker.definition("T") == changed


@pytest.mark.timeout(20)
def test_a_definition_that_another_version_wrote_can_be_changed_and_deleted(broker):
    """It was compared with our own way to write it, and asked for again for ever."""
    written = json.loads(broker.create("T", "Priority", 8).to_json()) | {"newSetting": 1}
    broker.server.command("HSET", topics_key(broker.key_prefix), "T", json.dumps(written, indent=1))
    assert broker.alter("T", paused=True).paused
    broker.server.command("HSET", topics_key(broker.key_prefix), "T", json.dumps(written))
    broker.delete("T")
    assert broker.find("T") is None


def test_topics_are_listed_by_name(broker):
    assert broker.topics() == []
    made = [broker.create(name, "Priority", 1) for name in ("b", "a", "c")]
    assert broker.topics() == sorted(made, key=lambda topic: topic.name)


def test_a_topic_that_cannot_be_read_is_named_and_hides_no_other(broker, caplog):
    """Failed before: of one that a later version had written, all topics were not listed."""
    made = broker.create("T", "Priority", 1)
    for name in ("later", b"\xff"):
        broker.server.command("HSET", topics_key(broker.key_prefix), name, '{"topicType": "New"}')
    for _ in range(2):
        assert broker.topics() == [made]
    said = r"later is left out: The definition of topic later .* Use the version of rmq-spark that"
    assert len(re.findall(said, caplog.text)) == 1
    assert [row.topic for row in look(broker)] == ["T"]
    broker.schedule("s", "T", Message("m", priority=50), every="1h")
    assert [one.schedule.name for one in seen(broker)] == ["s"]
    assert [found.state for found in check_topics(broker)] == ["FAIL"]
    broker.delete("T")
    assert broker.topics() == []


def test_prefixes_keep_topics_apart(broker):
    other = Broker(broker.server, key_prefix=f"{broker.key_prefix}other:")
    broker.create("T", "Priority", 1)
    other.create("T", "FixedTime", 2)
    broker.queue("T").send([b"m"], priority=50)
    assert other.queue("T").figures().store.count == 0
    assert [topic.type.name for topic in (*broker.topics(), *other.topics())] == [
        "Priority",
        "FixedTime",
    ]


def test_a_deleted_topic_leaves_no_key_behind(broker):
    broker.create("T", "FixedTime", 2, groups=("", "g"), max_retries=0)
    broker.create("Other", "FixedTime", 1)
    broker.queue("Other").send([b"kept"], fixed_time=1000)
    kept = all_keys(broker)
    for group in ("", "g"):
        queue = broker.queue("T", group=group)
        queue.send(numbered(20), fixed_time=1000)
        open_run(queue, "spark", 0)
        requests = [ClaimRequest(0, 0, 5), ClaimRequest(1, 0, 5)]
        claims = queue.ask(
            claiming.claim,
            requests,
            claiming.Claiming(consumer="spark", run=1, seq=1, lease_ms=LONG_MS),
        )
        rollback(queue, 0, claims[0].claim_id, claims[0].contents[:2], 1000)
        broker.consumer("T", "plain", group=group).poll()
    assert all_keys(broker) != kept
    broker.delete("T")
    assert all_keys(broker) == kept


def test_of_two_removals_of_a_group_at_once_one_finds_nothing(broker, monkeypatch):
    """Failed before: it went on, and emptied what was created next under that name."""

    def while_another_is_faster(*args):
        monkeypatch.undo()
        broker.remove_group("T", "g")
        return replace(*args)

    replace = broker._replace
    broker.create("T", "FixedTime", 1, groups=("default", "g"))
    monkeypatch.setattr(broker, "_replace", while_another_is_faster)
    with pytest.raises(InvalidOption, match="T"):
        broker.remove_group("T", "g")


def test_of_two_deletions_at_once_one_waits_and_finds_nothing(broker, monkeypatch, caplog):
    def meanwhile(seconds):
        monkeypatch.undo()
        others.append(pool.submit(Broker(broker.server, key_prefix=broker.key_prefix).delete, "T"))
        wait_until(lambda: "topic T is being deleted" in logged(caplog), "the other one waits")
        return replace(*seconds)

    replace, others = broker._replace, []
    broker.create("T", "FixedTime", 1)
    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(broker, "_replace", lambda *args: meanwhile(args))
        broker.delete("T")
        with pytest.raises(UnknownTopic):
            others[0].result()
    assert all_keys(broker) == []


@pytest.mark.parametrize("what", ["delete", "remove_group"])
def test_a_deletion_that_is_killed_is_completed_by_the_next_one(broker, monkeypatch, what):
    """Seen: what was left under the keys came back with the next topic or group of that name."""

    class Killed(BaseException):
        pass

    def remove(topic):
        broker.delete(topic) if what == "delete" else broker.remove_group(topic, "g", drop=True)

    def left():
        return [key for key in all_keys(broker) if not key.endswith(b"rmq_deletions")]

    monkeypatch.setattr(administration, "_SENDERS_KNOW_S", 0)
    monkeypatch.setattr(administration, "_DELETION_MS", 0)
    server, is_killed, killed_after = type(broker.server), True, 0
    run = server._run_until_answered
    while is_killed:
        broker.create("T", "FixedTime", 1, groups=("default", "g"))
        queue = broker.queue("T", group="g")
        queue.send([b"m"], fixed_time=1000)
        queue.ask(reading.due, [0], "c")
        stage(queue, "query:1:0:attempt", {0: [1000, b"m"]}, {})
        broker.schedule("s", "T", b"m", every="1h")
        calls = killed_after

        def killing(self, *args):
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise Killed
            return run(self, *args)

        monkeypatch.setattr(server, "_run_until_answered", killing)
        try:
            remove("T")
            is_killed = False
        except Killed:
            killed_after += 1
        monkeypatch.setattr(server, "_run_until_answered", run)
        with contextlib.suppress(UnknownTopic, InvalidOption):  # it was nearly done
            remove("T")
        if what == "remove_group":
            assert not [key for key in left() if key.endswith(b"@g")]
            broker.delete("T")
        assert left() == []
    assert killed_after > 5
    if what == "delete":
        broker.create("T", "FixedTime", 1)
        broker.delete("T")
        assert all_keys(broker) == []  # nor a mark of those that were killed


def test_a_topic_that_is_created_anew_loses_nothing_and_gets_nothing_of_the_old_one(
    redis_url, broker
):
    """Failed before: for a second, senders stored by the old definition, where nobody reads."""
    broker.create("T", "FixedTime", 16)
    is_created, ended, after = threading.Event(), threading.Event(), []

    def send():
        with connect(redis_url, key_prefix=broker.key_prefix) as other:
            queue, number = None, 0
            while not ended.is_set():
                is_after, number = is_created.is_set(), number + 1
                try:
                    queue = queue or other.queue("T")
                    queue.send([b"%d" % number], fixed_time=99)
                except UnknownTopic:
                    queue = None
                else:
                    after.extend([b"%d" % number] * is_after)

    with ThreadPoolExecutor() as pool:
        sender = pool.submit(send)
        broker.delete("T")
        broker.create("T", "FixedTime", 2)
        is_created.set()
        wait_until(lambda: len(after) > 100 or sender.done(), "messages of the new topic")
        ended.set()
        sender.result()
    found = {
        content
        for slot in (0, 1)
        for content in broker.server.client.zrange(broker.queue("T").keys.store(slot), 0, -1)
    }
    assert set(after) <= found
    assert broker.queue("T").figures().store.count == len(found)
    broker.delete("T")
    assert all_keys(broker) == []


def test_a_deletion_that_has_lapsed_leaves_the_next_topic_alone(redis_url, broker, monkeypatch):
    """Seen: a program that stood still for a minute then emptied what others had created."""

    def meanwhile(seconds):
        with connect(redis_url, key_prefix=broker.key_prefix) as other:
            other.create("T", "FixedTime", 1)
            assert other.queue("T").send([b"new"], fixed_time=99).new == 1

    monkeypatch.setattr(administration, "_DELETION_MS", -1000)
    broker.create("T", "FixedTime", 1)
    monkeypatch.setattr(broker.server, "pause", meanwhile)
    broker.delete("T")
    assert broker.queue("T").figures().store.count == 1


def test_who_creates_a_topic_completes_a_deletion_that_was_interrupted(
    redis_url, broker, monkeypatch
):
    """Seen: the new topic had what senders stored who did not know of the deletion."""

    def meanwhile(seconds):
        monkeypatch.undo()
        assert sender.send([b"old"], fixed_time=99).new == 1
        raise KeyboardInterrupt

    broker.create("T", "FixedTime", 1)
    with connect(redis_url, key_prefix=broker.key_prefix) as other:
        sender = other.queue("T")
        monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 3600.0)
        monkeypatch.setattr(broker.server, "pause", meanwhile)
        with pytest.raises(KeyboardInterrupt):
            broker.delete("T")
    broker.create("T", "FixedTime", 1)
    assert broker.queue("T").figures().store.count == 0
    broker.delete("T")
    assert all_keys(broker) == []


def test_a_topic_is_created_only_when_its_deletion_is_done(redis_url, broker, monkeypatch, caplog):
    """Failed before: the deletion emptied the new topic, too."""

    def create():
        with connect(redis_url, key_prefix=broker.key_prefix) as other:
            other.create("T", "Priority", 1)
            return other.queue("T").send([b"new"], priority=50)

    def meanwhile(seconds):
        created.append(pool.submit(create))
        wait_until(lambda: "topic T is being deleted" in logged(caplog), "the creation waits")

    created = []
    broker.create("T", "FixedTime", 1)
    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(broker.server, "pause", meanwhile)
        broker.delete("T")
        assert created[0].result().new == 1
    assert broker.queue("T").figures().store.count == 1


def test_what_concerns_all_slots_is_sent_for_many_of_them_at_once(own_redis):
    """Each took a round trip of its own, so that to delete a topic of 65 536 slots took 32 s."""
    slots = 1024
    with connect(own_redis.url) as broker:

        def cheaply(run):
            def reads():
                return broker.server.client.info("stats")["total_reads_processed"]

            begun = reads()
            done = run()
            assert reads() - begun < slots / 2
            return done

        broker.create("T", "FixedTime", slots, exclusive=True)
        keys = broker.queue("T").keys
        for slot in range(slots):
            broker.server.commands(
                [
                    ("HSET", keys.consumers(slot), "@epoch", 7, f"c{slot}", "1 0 0 0 0"),
                    ("HSET", consumer_key(f"c{slot}"), "topic", "T"),
                    ("HSET", keys.stages(slot), "a:1:0", "1"),
                    ("RPUSH", keys.stage(slot, "a:1:0"), "1", "m"),
                    ("HSET", keys.rate(slot), "at", 1),
                ]
            )
        broker.server.command("HSET", consumer_key("c7"), "topic", "Other")  # of the same name
        assert cheaply(lambda: broker.lower_epochs("T")) == slots
        assert broker.lower_epochs("T") == 0
        cheaply(lambda: broker.alter("T", exclusive=False))
        assert not broker.server.command("HEXISTS", keys.consumers(slots - 1), "@epoch")
        cheaply(lambda: broker.delete("T"))
        assert all_keys(broker) == [consumer_key("c7").encode()]


def test_a_topic_may_be_created_anew_as_another(broker):
    broker.create("T", "FixedTime", 2)
    broker.queue("T").send([b"m"], fixed_time=1000)
    broker.delete("T")
    broker.create("T", "Priority", 4)
    assert broker.queue("T").figures().store.count == 0


def test_a_group_the_topic_has_not_is_refused(broker):
    broker.create("T", "FixedTime", 2, groups=("", "billing"))
    with pytest.raises(
        InvalidOption, match=r"group='x' is not a consumer group of topic T\. .*default, billing"
    ):
        broker.queue("T", group="x")


def test_a_topic_may_do_without_the_default_group(broker):
    broker.create("T", "FixedTime", 1, groups=("billing",))
    with pytest.raises(InvalidOption, match=r"Accepted: billing\. Name one of them\."):
        broker.queue("T", group="default")
    queue = broker.queue("T", group="billing")
    assert queue.send([b"m"], fixed_time=1000).new == 1
    assert queue.figures().store.count == 1


def test_what_concerns_one_group_must_name_it_if_there_is_no_default_group(broker):
    """Failed before: it took the first group, and said nothing."""
    broker.create("T", "FixedTime", 1, groups=("billing", "audit"), unique_for="1h")
    queue = broker.queue("T")
    assert queue.send([b"m"], fixed_time=1000).new == 1
    assert queue.accept_again([b"m"]) == 1
    refused = (
        r"^group='default' is not a consumer group of topic T\. Accepted: billing, audit\. Name "
        r"one of them\.$"
    )
    for operation in (
        lambda queue: queue.cancel([b"m"]),
        lambda queue: queue.move([b"m"], delay="1h"),
        lambda queue: queue.requeue([b"m"]),
        lambda queue: queue.purge([b"m"], "store"),
        lambda queue: queue.expire(),
        lambda queue: queue.figures(),
        lambda queue: queue.find([b"m"]),
        lambda queue: queue.pages("store", 0),
    ):
        with pytest.raises(InvalidOption, match=refused):
            operation(queue)
        operation(queue.of_group("billing"))
        operation(broker.queue("T", group="audit"))
    with pytest.raises(InvalidOption, match=refused):
        broker.consumer("T", "a")


def test_a_group_added_later_gets_what_is_sent_from_then_on(broker):
    broker.create("T", "FixedTime", 1)
    broker.queue("T").send([b"before"], fixed_time=1000)
    broker.alter("T", groups=("", "late"))
    broker.queue("T").send([b"after"], fixed_time=1000)
    assert broker.queue("T").figures().store.count == 2
    assert broker.queue("T", group="late").figures().store.count == 1


def test_a_key_of_another_type_under_the_topics_name_is_told(broker):
    broker.server.command("SET", topics_key(broker.key_prefix), "somebody else's")
    for ask in (lambda: broker.find("T"), broker.topics, lambda: broker.create("T", "Priority")):
        with pytest.raises(WrongKeyType, match="set another key prefix"):
            ask()


@pytest.mark.parametrize("prefix", ["shop", ":", "{a}:"])
def test_a_bad_prefix_is_refused(broker, prefix):
    with pytest.raises(InvalidOption, match=r"^key_prefix="):
        Broker(broker.server, key_prefix=prefix)


def test_a_group_that_comes_back_has_what_senders_at_work_sent_it(redis_url, broker):
    broker.create("T", "FixedTime", 2, groups=("", "g"))
    with connect(redis_url, key_prefix=broker.key_prefix) as other:
        sender = other.queue("T")
        broker.remove_group("T", "g")
        sender.send(numbered(5), fixed_time=1000)
    broker.add_group("T", "g")
    assert broker.queue("T", group="g").figures().messages == 5
    assert broker.queue("T").figures().messages == 5


def test_calls_that_add_a_group_at_the_same_time_delete_nothing(broker, monkeypatch):
    """Seen: services that started together deleted what the group of the first one had got."""
    broker.create("T", "FixedTime", 2)
    other = Broker(broker.server, key_prefix=broker.key_prefix)
    reading = broker._read

    def read(name):
        monkeypatch.undo()
        found = reading(name)
        other.add_group("T", "g")
        other.queue("T").send(numbered(5), fixed_time=1000)
        return found

    monkeypatch.setattr(broker, "_read", read)
    assert broker.add_group("T", "g").groups == ("", "g")
    assert broker.queue("T", group="g").figures().messages == 5


@pytest.mark.parametrize("group", ["default", "g"])
def test_a_group_that_gets_messages_while_it_is_removed_stays_with_them(broker, group, monkeypatch):
    """Seen: the group was put back empty, and so it was removed after all."""
    broker.create("T", "FixedTime", 2, groups=("", "g"))
    sender = broker.queue("T")
    removed = broker._replace

    def replace(name, read, new):
        monkeypatch.undo()
        sender.send(numbered(5), fixed_time=1000)
        return removed(name, read, new)

    monkeypatch.setattr(broker, "_replace", replace)
    with pytest.raises(GroupNotEmpty, match="holds 5 messages"):
        broker.remove_group("T", group)
    assert [broker.queue("T", group=one).figures().messages for one in ("default", "g")] == [5, 5]


def test_what_a_consumer_of_several_topics_has_done_goes_with_the_last_of_them(broker):
    for name in ("A", "B"):
        broker.create(name, "FixedTime", 1)
    key = consumer_key("c", broker.key_prefix)
    run = broker.server.ask(claiming.open_run(key, "A,B", 0))
    for queue in map(broker.queue, ("A", "B")):
        queue.send(numbered(1), fixed_time=1000)
        queue.ask(
            claiming.claim,
            [ClaimRequest(0, 0, 1)],
            claiming.Claiming(consumer="c", run=1, seq=1, lease_ms=LONG_MS),
        )
    broker.delete("A")
    assert broker.server.ask(claiming.topics_of(key)) == "A,B"
    assert broker.server.ask(claiming.open_run(key, "A,B", 0)) > run
    broker.delete("B")
    assert all_keys(broker) == []


def test_a_sealed_batch_goes_on_without_a_topic_that_was_deleted(broker, caplog):
    name = StageName("query", 0, 0, "attempt")
    for topic in ("A", "B"):
        broker.create(topic, "FixedTime", 1)
        stage(broker.queue(topic), str(name), {0: [1000, b"m"]}, {})
    broker.delete("A")
    manifest = Manifest({str(name): {"A": {0: 1}, "B": {0: 1}}}, 2)
    assert StagedSink(broker, "query").publish(0, manifest).new == 1
    assert "topic A was deleted" in logged(caplog)
    assert broker.queue("B").figures().store.count == 1
    assert StagedSink(broker, "query").publish(1, Manifest({}, 0)) is None


# -- what plain Python calls groups, and what a sender sees of them


def test_the_default_group_is_named_as_everywhere_else(broker):
    groups = iter(["default", "audit"])
    made = broker.create("T", "FixedTime", 1, groups=groups, retry_backoff=iter([7]))
    assert (made.groups, made.retry_backoff_ms) == (("", "audit"), (7,))
    assert broker.queue("T", group="default").keys.group == ""
    assert broker.create("U", "FixedTime", 1, groups="billing,default").groups == ("billing", "")
    broker.queue("T").send(["m"], fixed_time=99)
    with broker.consumer("T", "clerk", group="default") as clerk:
        assert len(clerk.poll()) == 1


def test_a_topic_without_a_default_group_has_a_queue_to_send_to(broker):
    broker.create("T", "FixedTime", 1, groups=["billing", "audit"])
    assert broker.queue("T").send(["m"], fixed_time=99).new == 1
    for group in ("billing", "audit"):
        assert broker.queue("T", group=group).figures().store.count == 1


def test_groups_of_a_topic_that_is_there_must_be_there(broker):
    broker.create("T", "FixedTime", 1, groups=["billing"])
    with pytest.raises(TopicMismatch, match=r"no consumer group audit, only billing"):
        broker.create("T", "FixedTime", 1, groups=["billing", "audit"])


@pytest.mark.parametrize("group", ["", " ", ["x"], 7, None])
def test_a_group_that_is_added_has_a_name(broker, group):
    broker.create("T", "FixedTime", 1)
    with pytest.raises(InvalidOption, match="is not a group name"):
        broker.add_group("T", group)


def test_a_sender_goes_by_the_groups_there_are(broker, monkeypatch):
    broker.create("T", "FixedTime", 1)
    sender = broker.queue("T")
    broker.add_group("T", "late")
    monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 0.0)
    sender.send(["m"], fixed_time=99)
    late = broker.queue("T", group="late")
    assert late.figures().store.count == 1
    broker.remove_group("T", "late", drop=True)
    sender.send(["n"], fixed_time=99)
    assert broker.server.command("EXISTS", late.keys.store(0)) == 0


def test_a_sender_that_learns_of_its_topic_meanwhile_counts_all_its_messages(broker):
    broker.create("T", "FixedTime", 16)
    sender = broker.queue("T")
    time.sleep(0.6)  # from now on, for half a second, it reads the definition with what it sends
    assert sender.send(numbered(100), fixed_time=99) == SendResult(100, 0)


def test_a_program_that_has_changed_a_topic_sends_by_the_change(broker):
    """Failed before: for a second, a new group missed what its own program sent."""
    broker.create("T", "FixedTime", 1)
    sender = broker.queue("T")
    broker.add_group("T", "late")
    sender.send(["m"], fixed_time=99)
    assert broker.queue("T", group="late").figures().store.count == 1
    broker.alter("T", unique_for="1h")
    sender.send(["n"], fixed_time=99)
    sender.cancel(["n"])
    assert sender.send(["n"], fixed_time=99) == SendResult(0, 0, repeated=1)


def test_a_sender_of_a_deleted_topic_is_told(broker, monkeypatch):
    broker.create("T", "FixedTime", 1)
    sender = broker.queue("T")
    broker.delete("T")
    monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 0.0)
    with pytest.raises(UnknownTopic, match=r"was deleted. None of these messages"):
        sender.send(["m"], fixed_time=99)
    assert broker.server.command("EXISTS", sender.keys.store(0)) == 0


@pytest.mark.parametrize("kind", ["nix", "sto", None])
def test_a_queue_that_does_not_exist_is_refused(broker, kind):
    broker.create("T", "FixedTime", 1)
    for ask in (lambda q: q.purge(["m"], kind), lambda q: q.pages(kind, 0)):
        with pytest.raises(InvalidOption, match=r"Accepted: store, prepare, retry, dead\."):
            ask(broker.queue("T"))


def test_the_text_of_a_queue_is_accepted(broker):
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send(["m"], fixed_time=99)
    assert [page.contents for page in queue.pages("Store", 0)] == [[b"m"]]
    assert queue.purge(["m"], "STORE") == 1


def test_a_definition_that_was_just_read_is_not_read_again(redis_url, broker, monkeypatch):
    broker.create("T", "FixedTime", 1)
    with connect(redis_url, key_prefix=broker.key_prefix) as other:
        sender = other.queue("T")
        broker.delete("T")
        monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 3600.0)
        assert sender.send(["m"], fixed_time=99).new == 1


def test_options_of_the_connection_may_be_what_they_mean(redis_url):
    with pytest.raises(ServerUnsuitable, match=r"^cluster=true, but .* Leave cluster out"):
        connect(redis_url, cluster=True, patience_s=1)
    connect(redis_url, cluster=False, min_replicas=0).close()
    with pytest.raises(InvalidOption, match=r"^sentinels is a list"):
        connect(sentinels=["a:1"], sentinelMaster="m")


def test_an_unknown_topic_is_told_with_the_nearest_names(broker):
    for name in ("Orders", "Orders.new", "Parcels"):
        broker.create(name, "FixedTime", 1)
    with pytest.raises(UnknownTopic, match=r"Similar: Orders, Orders.new\."):
        broker.queue("orders.nw")
    missing = r"exist on \S+ under the prefix \S+\. Create it with"
    with pytest.raises(UnknownTopic, match=missing):
        broker.queue("xyz")
    with pytest.raises(UnknownTopic, match=missing):
        broker.schedule("hourly", "xyz", "m", every="1h")
    with pytest.raises(UnknownTopic) as raised:
        broker.delete("xyz")
    assert "Create" not in str(raised.value)


def test_a_topic_that_is_made_in_another_way_during_a_send_gets_none_of_it(broker):
    """Another thread's send has learned of the new definition meanwhile."""
    broker.create("Again", "FixedTime", 16)
    queue = broker.queue("Again")

    def contents():
        yield "first"
        broker.delete("Again")
        broker.create("Again", "FixedTime", 2)
        queue._read_s -= 2
        queue.refresh()
        yield from (f"m{number}" for number in range(50))

    with pytest.raises(UnknownTopic, match="created in another way"):
        queue.send(contents(), fixed_time=1000)
    assert queue.send(["later"], fixed_time=1000).new == 1
    assert queue.figures().store.count == 1


def test_settings_that_an_existing_topic_keeps_are_told(broker, caplog):
    broker.create("T", "FixedTime", rate="50/s", time_to_live="1h", groups="default,audit")
    caplog.clear()
    broker.create("T", "FixedTime", rate="50/s", groups="audit")
    assert logged(caplog, "topic T ") == ""
    broker.create("T", "FixedTime", rate="9/s", burst=3, retry_backoff="1s", time_to_live="1h")
    assert "topic T exists, and keeps retry_backoff=none, rate=50/s, burst=none." in caplog.text
    assert broker.definition("T").rate == "50/s"


def test_a_user_who_may_not_wait_for_replicas_is_told_that_the_write_is_done(own_redis):
    """Failed before: ServerRefused, which means that nothing was sent, but it was."""
    with connect(own_redis.url) as admin:
        admin.create("T", "FixedTime", 4)
        admin.server.command("ACL", "SETUSER", "shop", "on", "nopass", "~*", "&*", "+@all", "-wait")
        as_shop = own_redis.url.replace("redis://", "redis://shop:x@")
        with connect(as_shop, min_replicas=1, replica_timeout="100ms") as broker:
            queue = broker.queue("T")
            with pytest.raises(NotReplicated, match=r"has written, .* may not run WAIT.*\+wait"):
                queue.send(["m"], fixed_time=1000)
        assert admin.queue("T").figures().store.count == 1


def test_an_unknown_option_that_is_like_no_other_names_none(redis_url):
    """Failed before: "Did you mean url?"."""
    with pytest.raises(InvalidOption, match=r"connection to Redis: foo\. Accepted: url, "):
        connect(redis_url, foo="x")
    with pytest.raises(InvalidOption, match=r"Did you mean socketTimeout\?"):
        connect(redis_url, socket_timeot="2s")


@pytest.mark.parametrize("bad", [5, None, b"T", ["T"], 1.5])
def test_a_name_that_is_no_text_is_refused_by_all_that_take_one(bad, broker):
    """Failed before: with a TypeError of re, or an AttributeError."""
    named = [broker.queue, broker.find, broker.pause, broker.resume, broker.delete]
    for call in (*named, lambda name: broker.schedule("s", name, "m", every="1h")):
        with pytest.raises(InvalidOption, match="is not a topic name"):
            call(bad)
    broker.create("T", "FixedTime", 1)
    with pytest.raises(InvalidOption, match=r"^The consumer name .* is not accepted"):
        broker.consumer("T", bad)
    assert not broker.unschedule(bad)


@pytest.mark.parametrize("bad", [5, None, 1.5])
def test_what_is_no_list_of_messages_is_refused(bad, broker):
    """Failed before: with a TypeError."""
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    with pytest.raises(InvalidMessage, match=r"^send takes a list of messages"):
        queue.send(bad, fixed_time=0)
    for call in (queue.cancel, queue.purge, queue.requeue, queue.move, queue.accept_again):
        with pytest.raises(InvalidMessage, match=r"^contents=.* is a single"):
            call(bad)


@pytest.mark.parametrize("bad", ["2s", timedelta(seconds=1), -1, float("nan"), True])
def test_a_patience_that_is_no_number_of_seconds_is_refused_at_once(bad, redis_url):
    """Failed before: with a TypeError, only when Redis could not be reached."""
    with pytest.raises(InvalidOption, match=r"^patience_s=.* Accepted: seconds"):
        connect(redis_url, patience_s=bad)
    with pytest.raises(InvalidOption, match=r"^patience_s="):
        asyncio.run(aio.connect(redis_url, patience_s=bad))
