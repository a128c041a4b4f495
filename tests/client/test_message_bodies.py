"""Keys, headers and expiry that plain Python sends, and what is refused of them."""

from datetime import UTC, datetime, timedelta

import pytest

from rmq_spark.client import Message
from rmq_spark.errors import InvalidMessage
from rmq_spark.protocol.pages import QueueKind

YEAR_2100_MS = 4_102_444_800_000


@pytest.fixture
def keyed(broker):
    broker.create("Orders", "FixedTime", 1, keyed=True)
    return broker.queue("Orders")


def stored(queue):
    (page,) = queue.pages(QueueKind.STORE, 0)
    return list(page.entries())


def test_a_message_carries_what_it_was_sent_with(keyed):
    headers = [("source", "web"), ("source", b"\xff"), ("none", None)]
    end = datetime(2100, 1, 1, tzinfo=UTC)
    keyed.send([Message("paid", key="a", headers=headers, expires_at=end)], fixed_time=0)
    (entry,) = stored(keyed)
    assert (entry.key, entry.content, entry.expires_at_ms) == (b"a", b"paid", YEAR_2100_MS)
    assert entry.headers == (("source", b"web"), ("source", b"\xff"), ("none", None))


def test_keywords_are_for_messages_without_the_value(keyed):
    own = Message(key="own", headers={"source": "shop"}, time_to_live=1)
    keyed.send(
        [own, Message(key="b")],
        fixed_time=YEAR_2100_MS,
        headers={"source": "web"},
        time_to_live=timedelta(seconds=1),
    )
    found = {entry.key: (entry.headers, entry.expires_at_ms) for entry in stored(keyed)}
    assert found == {
        b"own": ((("source", b"shop"),), YEAR_2100_MS + 1),
        b"b": ((("source", b"web"),), YEAR_2100_MS + 1000),
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"key": None}, "key is None. Accepted in a keyed topic: bytes or str, 1 to 1024 bytes"),
        ({"key": ""}, "key is 0 bytes long. Accepted"),
        ({"key": b"x" * 1025}, "key is 1025 bytes long. Accepted"),
        ({"key": "\ud800"}, "key is '\\ud800'. Accepted"),
        ({"headers": {"a": 5}}, "the header 'a' is 5. Accepted: a name of type str, and a value"),
        ({"headers": {b"a": "b"}}, "the header b'a' is 'b'. Accepted"),
        ({"headers": {"a": "\ud800"}}, "the header 'a' is '\\ud800'. Accepted"),
        ({"headers": {"\ud800": "b"}}, "the header '\\ud800' is 'b'. Accepted"),
        ({"headers": ["ab"]}, "the header 'ab' is not a name and a value. Accepted"),
        ({"headers": [("a", "b", "c")]}, "is not a name and a value. Accepted"),
        ({"headers": "ab"}, "headers is 'ab'. Accepted: a mapping, or pairs of name and value"),
        ({"headers": 5}, "headers is 5. Accepted: a mapping"),
        ({"time_to_live": 0}, "time_to_live is 0. Accepted: whole milliseconds, 1 to"),
        ({"time_to_live": "5 weeks"}, "time_to_live is '5 weeks'. Accepted"),
        ({"expires_at": datetime(2100, 1, 1)}, "Accepted: ms since 1970, 1 to"),
        ({"expires_at": 1}, "expires_at is 1, before the message is due"),
        ({"expires_at": YEAR_2100_MS, "time_to_live": 1}, "Accepted: one of the two"),
    ],
)
def test_what_is_refused_is_named(keyed, values, said):
    given = {"key": "a", **values}
    with pytest.raises(InvalidMessage) as raised:
        keyed.send([Message(key="good"), Message("paid", **given)], fixed_time=0)
    assert "Message 1" in str(raised.value)
    assert said in str(raised.value)
    assert keyed.figures().messages == 0


def test_a_topic_without_keys_takes_none(broker):
    broker.create("Mails", "FixedTime", 1)
    with pytest.raises(InvalidMessage, match="key is 'a', but the topic is not keyed"):
        broker.queue("Mails").send([Message("m", key="a")], fixed_time=0)
