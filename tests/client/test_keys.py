"""Keys, headers and expiry in plain Python: what is accepted, and what a consumer gets."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from rmq_spark import Message
from rmq_spark.client.messages import LONGEST_KEY_BYTES, LONGEST_TIME_TO_LIVE_MS
from rmq_spark.errors import InvalidMessage, InvalidOption, TopicMismatch
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import QueueKind

DUE = 1000
YEAR_2100_MS = 4_102_444_800_000


@pytest.fixture
def queue(broker):
    broker.create("T", "FixedTime", 4, keyed=True)
    return broker.queue("T")


@pytest.fixture
def plain(broker):
    broker.create("P", "FixedTime", 4)
    return broker.queue("P")


def taken(broker, topic):
    """Every message of a topic, committed."""
    with broker.consumer(topic, "c") as consumer:
        found = []
        for batch in consumer.batches(wait=False):
            found += batch
            batch.commit()
        return found


def test_a_consumer_gets_key_payload_headers_and_expiry(broker, queue):
    end = datetime(2100, 1, 1, tzinfo=UTC)
    headers = [("a", "1"), ("a", b"\xff"), ("b", None)]
    queue.send([Message("p", key="k", headers=headers, expires_at=end)], fixed_time=DUE)
    [entry] = queue.find(["k"])
    [found] = taken(broker, "T")
    for one in (entry, found):
        assert (one.key, one.content) == (b"k", b"p")
        assert one.headers == (("a", b"1"), ("a", b"\xff"), ("b", None))
        assert one.expires_at_ms == end.timestamp() * 1000
    assert found.name == b"k"


def test_a_page_counts_the_time_to_live_from_when_an_entry_is_due(queue):
    own, other = Message(key="own", time_to_live=1), Message(key="b")
    queue.send([own, other], fixed_time=YEAR_2100_MS, time_to_live=timedelta(seconds=1))
    pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
    ends = {entry.key: entry.expires_at_ms for page in pages for entry in page.entries()}
    assert ends == {b"own": YEAR_2100_MS + 1, b"b": YEAR_2100_MS + 1000}


def test_without_any_of_them_a_message_is_as_it_was(broker, plain):
    plain.send(["m"], fixed_time=DUE)
    [found] = taken(broker, "P")
    assert (found.key, found.headers, found.expires_at_ms) == (None, (), None)
    assert found.name == found.content == b"m"


def test_defaults_are_for_messages_that_lack_them(broker, plain):
    own = Message("n", headers=iter([("own", b"2"), ("own", b"3")]))
    for default in (iter([("all", "1")]), {"all": "1"}):
        plain.send([Message("m"), own, "o"], fixed_time=DUE, headers=default)
        headers = {message.content: message.headers for message in taken(broker, "P")}
        assert headers.pop(b"n") == (("own", b"2"), ("own", b"3"))
        assert headers == {b"m": (("all", b"1"),), b"o": (("all", b"1"),)}


def test_an_own_expiry_goes_before_a_default_of_either_kind(broker, queue):
    far = 4_000_000_000_000
    message = Message("p", key="k", expires_at=far)
    queue.send(
        [message, Message("p", key="l")], fixed_time=DUE, time_to_live=timedelta(days=40_000)
    )
    ends = {message.key: message.expires_at_ms for message in taken(broker, "T")}
    assert ends == {b"k": far, b"l": DUE + 40_000 * 86_400_000}


def test_the_same_key_merges_and_goes_to_one_slot(broker, queue):
    assert queue.send([Message("a", key="k")], fixed_time=DUE).new == 1
    assert queue.send([Message("b", key=b"k")], fixed_time=DUE).merged == 1
    [found] = taken(broker, "T")
    assert (found.content, found.slot) == (b"b", queue.definition.slot_of("k"))


def test_a_rollback_names_messages_by_key(broker, queue):
    queue.send([Message("p", key=f"k{n}") for n in range(4)], fixed_time=DUE)
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll()
        failed = [message for message in batch if message.key == b"k2"]
        assert batch.rollback(failed) == 1
        assert batch.commit() == 3
    [again] = taken(broker, "T")
    assert (again.key, again.content, again.delivery_count) == (b"k2", b"p", 2)


def test_a_consumer_that_finds_only_expired_messages_goes_on_to_the_next(broker, queue):
    expired = [Message("p", key=f"k{n}", expires_at=DUE + 1) for n in range(50)]
    queue.send([*expired, Message("p", key="stays", fixed_time=DUE + 5)], fixed_time=DUE)
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll(1)
        assert [message.key for message in batch] == [b"stays"]
        batch.commit()
    assert queue.figures().counters["expired"] == 50


def test_a_thousand_claims_in_a_row_may_find_only_expired_messages(broker, queue):
    """Each was a call within the call before, which Python ends at a depth of a thousand."""
    expired = [Message("p", key=f"k{n}", expires_at=DUE + 1) for n in range(1100)]
    queue.send([*expired, Message("p", key="stays", fixed_time=DUE + 5)], fixed_time=DUE)
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll(1)
        assert [message.key for message in batch] == [b"stays"]
        assert batch.commit() == 1
    assert queue.figures().counters["expired"] == 1100
    assert [queue.ask(reading.records, slot) for slot in queue.slots] == [[]] * 4


def test_operations_name_messages_by_key(queue):
    queue.send([Message("p", key=key) for key in ("a", "b")], fixed_time=DUE)
    assert queue.cancel(["a", "p"]) == 1
    assert queue.purge(["b"], "store") == 1
    assert queue.figures().messages == 0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("p"), "Message 1 of topic T: key is None"),
        (Message("p", key=""), "key is 0 bytes long"),
        (Message("p", key="x" * (LONGEST_KEY_BYTES + 1)), "key is 1025 bytes long"),
        (Message("p", key=7), "key is 7"),
        (Message("p", key="\ud800"), "key is '\\ud800'. Accepted"),
        (Message(7, key="k"), "content is 7"),
        (Message("p", key="k", headers={None: "x"}), "the header None is 'x'"),
        (Message("p", key="k", headers={"h": 7}), "the header 'h' is 7"),
        (Message("p", key="k", headers={"h": "\ud800"}), "the header 'h' is '\\ud800'"),
        (Message("p", key="k", headers={"\ud800": "x"}), "the header '\\ud800' is 'x'"),
        (Message("p", key="k", headers=["ab"]), "the header 'ab' is not a name and a value"),
        (Message("p", key="k", headers=[("a", "b", "c")]), "is not a name and a value"),
        (Message("p", key="k", headers="ab"), "Accepted: a mapping, or pairs of name and value"),
        (Message("p", key="k", headers=5), "headers is 5. Accepted: a mapping"),
        (Message("p", key="k", time_to_live=0), "time_to_live is 0"),
        (Message("p", key="k", time_to_live=LONGEST_TIME_TO_LIVE_MS + 1), "time_to_live is"),
        (Message("p", key="k", time_to_live=True), "time_to_live is True"),
        (Message("p", key="k", time_to_live="5 weeks"), "time_to_live is '5 weeks'"),
        (Message("p", key="k", expires_at=DUE - 1), "before the message is due"),
        (Message("p", key="k", expires_at=datetime(2100, 1, 1)), "a datetime with a time zone"),
        (Message("p", key="k", expires_at=10_000, time_to_live=5), "Accepted: one of the two"),
    ],
)
def test_a_message_that_is_not_accepted_is_named_and_nothing_is_sent(queue, message, text):
    with pytest.raises(InvalidMessage) as raised:
        queue.send([Message("p", key="good"), message], fixed_time=DUE)
    assert text in str(raised.value)
    assert "Message 1" in str(raised.value)
    assert "Nothing was sent" in str(raised.value)
    assert queue.figures().messages == 0


def test_an_expiry_before_a_delay_is_over_is_refused(queue):
    soon = queue.now_ms() + 1000
    with pytest.raises(InvalidMessage, match="before the message is due"):
        queue.send([Message("p", key="k", delay=60_000, expires_at=soon)])


def test_a_key_in_a_topic_without_keys_is_refused(plain):
    with pytest.raises(InvalidMessage, match="key is 'k', but the topic is not keyed"):
        plain.send([Message("m", key="k")], fixed_time=DUE)


def test_what_is_fixed_is_named_when_it_differs(broker, queue):
    with pytest.raises(TopicMismatch, match="keyed true, but you asked for keyed false"):
        broker.create("T", "FixedTime", keyed=False)
    with pytest.raises(TopicMismatch, match="payload last, but you asked for payload first"):
        broker.create("T", "FixedTime", keyed=True, payload="first")
    with pytest.raises(InvalidOption, match="keyed of a topic cannot be changed"):
        broker.alter("T", keyed=False)


def test_on_expiry_may_change(broker, queue):
    assert broker.alter("T", on_expiry="dead").on_expiry == "dead"
    queue = broker.queue("T")
    queue.send([Message("p", key="k", expires_at=DUE + 1)], fixed_time=DUE)
    assert taken(broker, "T") == []
    assert queue.figures().dead.count == 1
    with pytest.raises(InvalidOption, match="on_expiry='keep' is not accepted"):
        broker.alter("T", on_expiry="keep")


def test_dead_retention_may_change_and_bodies_go_with_the_dead(broker, queue):
    assert broker.alter("T", on_expiry="dead", dead_retention="30d").dead_retention_ms > 0
    queue = broker.queue("T")
    queue.send([Message("p", key="k", expires_at=DUE + 1)], fixed_time=DUE)
    assert taken(broker, "T") == []
    assert queue.expire() == 0
    assert queue.figures().dead.count == 1
    broker.alter("T", dead_retention=timedelta(milliseconds=1))
    died_ms = queue.figures().dead.oldest_ms
    while queue.now_ms() <= died_ms + 1:
        time.sleep(0.001)
    assert broker.queue("T").expire() == 0
    assert (queue.figures().dead.count, queue.figures().counters["forgotten"]) == (0, 1)
    slot = broker.definition("T").slot_of("k")
    assert broker.server.command("EXISTS", queue.keys.deaths(slot)) == 0
    with pytest.raises(InvalidOption, match="dead_retention='never' is not accepted"):
        broker.alter("T", dead_retention="never")


def test_a_header_of_a_megabyte_and_an_empty_payload_arrive(broker, queue):
    queue.send([Message("", key="k", headers={"h": b"x" * 2**20})], fixed_time=DUE)
    [found] = taken(broker, "T")
    assert (found.content, found.headers) == (b"", (("h", b"x" * 2**20),))
