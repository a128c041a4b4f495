"""Exports to RocketMQ, on a real broker behind its proxy."""

import subprocess
import sys
import uuid

import pytest

from rmq_spark.client import Message
from rmq_spark.jobs.targets import rocketmq as rocketmq_target
from rmq_spark.jobs.targets.rocketmq import RocketMQTopic

from .. import programs, quick_spark
from ..jobs.trade import Killed
from ..servers import NOBODYS_PORT
from .kafka_ports import ID

# The first of them waits for the broker, whose start takes a third of a minute.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def topics(rocketmq):
    """A topic of each kind, which the tests share: making one takes seconds."""
    return {kind: rocketmq.create(kind.lower(), kind) for kind in ("NORMAL", "FIFO", "DELAY")}


@pytest.fixture
def to_rocketmq(trade, rocketmq, topics):
    def export(*arguments, kind="NORMAL", url=rocketmq.url, to=None):
        return trade.export(
            *("--to", "rocketmq", "--checkpoint", trade.folder / "checkpoint"),
            *("--target-option", f"endpoints={url}"),
            *("--target-option", f"topic={to or topics[kind]}", *arguments),
        )

    return export


@pytest.fixture
def mark():
    """Begins each content of a test."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def stored(rocketmq, topics, mark):
    """Reads what came into a topic and begins with the mark."""

    def read(kind="NORMAL"):
        found = rocketmq.messages(topics[kind])
        return [one for one in found if one.body.startswith(mark.encode())]

    return read


def id_of(message):
    return tuple(message.properties[name] for name in ID)


def bodies(messages):
    return sorted(message.body for message in messages)


def refused_in(trade):
    rows = trade.spark.read.parquet(f"{trade.folder}/checkpoint_exceptions").collect()
    return {row.content: row.reason for row in rows}


def test_a_message_has_a_name_for_ever_that_a_replay_repeats(
    trade, to_rocketmq, stored, mark, monkeypatch
):
    def killed(*_):
        raise Killed

    sent = [f"{mark} order {number}".encode() for number in range(100)]
    trade.orders(sent)
    with monkeypatch.context() as patched:
        patched.setattr(rocketmq_target, "note_in_folder", killed)  # after all are sent
        with pytest.raises(Exception, match="Killed"):
            to_rocketmq()
    once = stored()
    assert bodies(once) == sorted(sent)
    names = {message.body: id_of(message) for message in once}
    assert len(set(names.values())) == 100
    by_claim = {}
    for topic, slot, claim, position, row in names.values():
        assert (topic, row) == ("Orders", "0")
        by_claim.setdefault((slot, claim), []).append(int(position))
    assert all(sorted(at) == list(range(len(at))) for at in by_claim.values())
    assert to_rocketmq() == "100 messages done, 0 of them refused"
    again = stored()
    assert bodies(again) == sorted(2 * sent)
    assert all(id_of(message) == names[message.body] for message in again)
    assert trade.broker.queue("Orders").figures().messages == 0


def test_the_slot_is_the_group_where_a_topic_keeps_the_order(trade, to_rocketmq, stored, mark):
    trade.orders(f"{mark} order {number}" for number in range(60))
    to_rocketmq(kind="FIFO")
    by_slot = {}
    for message in stored("FIFO"):
        assert message.properties["__SHARDINGKEY"] == message.properties["rmq-slot"]
        claim_and_position = (
            message.properties["rmq-claim"],
            int(message.properties["rmq-position"]),
        )
        by_slot.setdefault(message.properties["rmq-slot"], []).append(
            (message.queue, *claim_and_position)
        )
    assert sum(map(len, by_slot.values())) == 60
    for places in by_slot.values():
        assert len({queue for queue, _, _ in places}) == 1
        assert [position for *_, position in places] == list(range(len(places)))


def test_keys_and_headers_go_along_and_what_no_message_can_be_is_refused(
    trade, to_rocketmq, stored, mark
):
    trade.broker.create("Orders", "FixedTime", 2, keyed=True)
    trade.orders(
        [
            Message(f"{mark} paid", key="a", headers=[("source", "web"), ("none", None)]),
            Message("", key="empty"),
            Message(f"{mark} bytes", key="b", headers=[("raw", b"\xff")]),
            Message(f"{mark} lines", key="c", headers=[("two", "a\nb")]),
            Message(f"{mark} system", key="d", headers=[("KEYS", "x")]),
            Message(mark + "x" * 4 * 1024 * 1024, key="e"),
            Message(f"{mark} lines in a key", key="f\ng"),
        ]
    )
    assert to_rocketmq("--headers") == "7 messages done, 6 of them refused"
    (found,) = stored()
    assert found.body == f"{mark} paid".encode()
    assert found.properties["KEYS"] == "a"
    assert found.properties["source"] == "web"
    assert "none" not in found.properties
    told = {content[9:15]: reason for content, reason in refused_in(trade).items()}
    assert told["bytes"] == "The header raw is not UTF-8, and RocketMQ takes only text there."
    assert "cannot contain control character" in told["lines"]
    assert "property is used by system: KEYS" in told["system"]
    assert told[""] == "RocketMQ takes no message without content."
    assert sum("at most 4,194,304 bytes" in reason for reason in told.values()) == 1


def test_select_makes_the_columns_and_may_refuse(trade, to_rocketmq, stored, mark):
    trade.orders([f"{mark} 1", f"{mark} x", f"{mark} 2"])
    select = (
        "explode(array(content, concat(content, ' again', string(int(split(content, ' ')[1]))))) "
        "AS value, 'chosen' AS key, "
        "array(named_struct('key', 'kind', 'value', CAST('word' AS BINARY))) AS headers"
    )
    assert to_rocketmq("--select", select) == "3 messages done, 1 of them refused"
    found = stored()
    assert bodies(found) == [
        f"{mark} {text}".encode() for text in ("1", "1 again1", "2", "2 again2")
    ]
    assert {message.properties["KEYS"] for message in found} == {"chosen"}
    assert {message.properties["kind"] for message in found} == {"word"}
    assert sorted(message.properties["rmq-row"] for message in found) == ["0", "0", "1", "1"]
    assert list(refused_in(trade)) == [f"{mark} x"]


def test_too_many_refused_messages_end_the_job(trade, to_rocketmq):
    trade.orders(["", "x" * (4 * 1024 * 1024 + 1)])
    with pytest.raises(Exception, match="More than 1 messages of one batch were refused"):
        to_rocketmq("--max-refused", "1")
    assert trade.broker.queue("Orders").figures().messages == 2


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("content", "a column content of type string. No record for RocketMQ has that"),
        ("key", "makes no column value"),
        ("1 AS value", "a column value of type int. No record for RocketMQ has that"),
    ],
)
def test_a_select_that_makes_no_record_is_refused(trade, to_rocketmq, select, told):
    trade.orders(["a"])
    with pytest.raises(Exception, match=told):
        to_rocketmq("--select", select)
    assert trade.broker.queue("Orders").figures().messages == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"to": "missing"}, "topic missing, failed: .*NotFound.* Create the topic missing"),
        ({"kind": "DELAY"}, "accepts messages of type DELAY. Take a topic of type NORMAL"),
        ({"url": "nowhere"}, "needs --target-option endpoints=HOST:PORT"),
        ({"url": f"127.0.0.1:{NOBODYS_PORT}"}, "failed: .*Check that a proxy runs there"),
    ],
)
def test_what_is_wrong_with_a_topic_is_told_in_one_line(trade, to_rocketmq, given, told):
    trade.orders(["a"])
    with pytest.raises(Exception, match=told) as failed:
        to_rocketmq(**given)
    assert "\n" not in str(failed.value)
    assert trade.broker.queue("Orders").figures().messages == 1


def test_an_unknown_option_is_told(to_rocketmq):
    with pytest.raises(Exception, match=r"has no option grup\. Accepted: endpoints, topic, "):
        to_rocketmq("--target-option", "grup=a")


def test_a_proxy_that_goes_down_loses_nothing(trade, to_rocketmq, topics):
    """The target has found the topic; then nobody answers a task."""
    trade.orders(["a"])
    gone = RocketMQTopic(f"127.0.0.1:{NOBODYS_PORT}", topics["NORMAL"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RocketMQTopic, "is_fifo", lambda _: False)
        patched.setattr(RocketMQTopic, "of", lambda _: gone)
        with pytest.raises(Exception, match="failed to fetch topic:normal") as failed:
            to_rocketmq()
    assert "No message is lost" in str(failed.value)
    assert trade.broker.queue("Orders").figures().messages == 1
    assert to_rocketmq() == "1 messages done, 0 of them refused"


def test_no_secret_is_shown(monkeypatch):
    monkeypatch.setenv("RMQ_ROCKETMQ_ACCESS_KEY", "shop")
    with pytest.raises(Exception, match="both an access key and a secret key"):
        RocketMQTopic.of({"endpoints": "a:1", "topic": "t"})
    monkeypatch.setenv("RMQ_ROCKETMQ_SECRET_KEY", "sesame-open")
    topic = RocketMQTopic.of({"endpoints": f"127.0.0.1:{NOBODYS_PORT}", "topic": "t"})
    assert (topic.access_key, topic.secret_key) == ("shop", "sesame-open")
    with pytest.raises(Exception, match="RocketMQ at ") as failed:
        topic.is_fifo()
    assert "sesame" not in f"{topic!r} {failed.value}"


def test_without_the_client_an_export_names_the_extra(trade, tmp_path):
    trade.orders(["a"])
    (tmp_path / "rocketmq.py").write_text("raise ImportError('not installed')\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rmq_spark.cli", "job"),
            *("export", "--topic", "Orders", *trade.redis),
            *("--to", "rocketmq", "--checkpoint", trade.folder / "checkpoint", "--once"),
            *("--target-option", "endpoints=127.0.0.1:1", "--target-option", "topic=t"),
        ],
        env=programs.environment(**quick_spark.variables(), PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("export: ")]
    assert "pip install '.[rocketmq]'" in told
