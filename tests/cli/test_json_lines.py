"""rmq send --from-json: the messages that other commands print, in another topic."""

import json

import pytest

from rmq_spark.client import Message

from ..seeding import LONG_MS

LATER_MS = 4_102_444_800_000
LATER = "2100-01-01T00:00:00.000Z"


def entries(queue):
    pages = queue.pages("store", 0)
    return {(entry.key or entry.content): entry for page in pages for entry in page.entries()}


@pytest.fixture
def copied(rmq):
    """Copies what waits in a topic, with the command line alone."""

    def copy(of_type, messages, *options, keyed=False, **values):
        queues = []
        for name in ("Old", "New"):
            rmq.broker.create(name, of_type, slot_amount=1, keyed=keyed)
            queues.append(rmq.broker.queue(name))
        queues[0].send(messages, **values)
        lines = rmq("peek", "Old", "--json", "--max", "1000000").out
        done = rmq("send", "New", "--from-json", *options, stdin=lines)
        assert (done.code, done.err) == (0, "")
        assert done.out == f"New: {len(messages)} new, 0 merged\n"
        return map(entries, queues)

    return copy


def test_a_copy_has_the_same_time_headers_and_end(copied):
    messages = [
        Message("text", headers={"source": "web", "bytes": b"\xff", "none": None}),
        Message(b"\xff\x00", expires_at=LATER_MS),
        Message("later", fixed_time=LATER_MS + 7, time_to_live="1h"),
    ]
    old, new = copied("FixedTime", messages, fixed_time=LATER_MS - 5)
    assert new == old
    assert new[b"text"].headers == (("source", b"web"), ("bytes", b"\xff"), ("none", None))


def test_a_copy_of_a_keyed_message_has_its_key(copied):
    messages = [Message("v1", key="a"), Message(None, key=b"\xff")]
    old, new = copied("Priority", messages, keyed=True, priority=900)
    assert new == old
    assert (new[b"\xff"].content, new[b"a"].priority) == (None, 900)


def test_a_copy_of_a_range_merge_message_is_due_when_it_was(rmq, copied):
    old, new = copied("RangeMerge", ["a"], time_range=LONG_MS)
    apart_ms = abs(new[b"a"].due_time_ms - old[b"a"].due_time_ms)
    assert apart_ms < LONG_MS / 2


def test_each_message_has_values_of_its_own_and_options_are_for_the_others(rmq):
    queue = rmq.topic()
    before_ms = queue.now_ms()
    lines = [
        {"content": "a", "delay": "2h", "slotBasis": "s"},
        {"content": "b", "fixedTime": LATER_MS, "priority": None},
        {"content": "c", "dueTime": LATER, "slot": 3, "reason": "KeyError", "diedAt": LATER},
        {"content": "d"},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    done = rmq("send", "Orders", "--from-json", "--delay", "1h", stdin=text)
    assert (done.code, done.out) == (0, "Orders: 4 new, 0 merged\n")
    found = {entry["content"]: entry for entry in rmq("peek", "Orders", "--json").lines}
    assert found["a"]["slot"] == queue.definition.slot_of(b"s")
    assert found["b"]["dueTime"] == found["c"]["dueTime"] == LATER
    (d,) = queue.find(["d"])
    (a,) = queue.find(["a"])
    assert before_ms + 3_600_000 <= d.due_time_ms < a.due_time_ms


def test_an_expired_message_is_left_out(rmq):
    """Failed before: one of them kept all from being sent, at each try."""
    queue = rmq.topic()
    lines = [
        {"content": "a", "dueTime": "2020-01-01T00:00:00Z", "expiresAt": "2020-01-02T00:00:00Z"},
        {"content": "b", "dueTime": "2020-01-01T00:00:00Z"},
    ]
    done = rmq("send", "Orders", "--from-json", stdin="\n".join(map(json.dumps, lines)))
    assert (done.code, done.out) == (0, "Orders: 1 new, 0 merged\n")
    assert done.err == "Line 1 was left out: the time of its expiresAt is over.\n"
    assert [entry.content for entry in queue.find(["a", "b"])] == [b"b"]


def test_a_copy_has_equal_priorities_in_the_same_order(rmq, copied):
    """Failed before: the other way round."""
    sent = [b"m%d" % number for number in (3, 1, 4, 5, 9, 2, 6)]
    copied("Priority", sent, priority=900)
    with rmq.broker.consumer("New", "a") as consumer:
        assert [message.content for message in consumer.poll()] == sent


def test_arguments_are_messages_too(rmq):
    queue = rmq.topic()
    assert rmq("send", "Orders", "--from-json", '{"content": "a", "fixedTime": "now"}').code == 0
    assert queue.figures().store.count == 1


def test_a_dead_message_is_corrected_and_sent_again(rmq):
    queue = rmq.topic()
    queue.send(["1 ???"], fixed_time=0)
    with rmq.broker.consumer("Orders", "a") as consumer:
        consumer.poll().rollback(bury=True)
    corrected = rmq("dead", "Orders", "--json").out.replace("???", "EUR")
    assert rmq("send", "Orders", "--from-json", "--fixed-time", "now", stdin=corrected).code == 0
    assert [entry["content"] for entry in rmq("peek", "Orders", "--json").lines] == ["1 EUR"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 2 is not JSON: "),
        (b'{"content": "\xff"}', "Line 2 is not JSON: "),
        ("[" * 100_000, "Line 2 is not JSON: "),
        ('["a"]', "Line 2: It is ['a']. Accepted: an object such as "),
        ('{"content": "a", "contentBase64": "YQ=="}', "Line 2: It has content and contentBase64."),
        ('{"content": 7}', "Line 2: content=7 is not accepted. Accepted: text."),
        (
            '{"contentBase64": "a"}',
            "Line 2: contentBase64='a' is not accepted. Accepted: text in B",
        ),
        (r'{"content": "\ud800"}', "Line 2: content='\\ud800' is not accepted."),
        ('{"content": "a", "fixedtime": 1}', "Line 2: field='fixedtime' is not accepted. Accepted"),
        ('{"content": "a", "fixedTime": 30}', "Line 2: fixedTime='30' would be 1970"),
        ('{"content": "a", "fixedTime": true}', "Line 2: fixedTime=True is not accepted."),
        ('{"content": "a", "delay": 1.5}', "Line 2: delay=1.5 is not accepted."),
        ('{"content": "a", "dueTime": "x"}', "Line 2: dueTime='x' is not accepted."),
        ('{"content": "a", "timeToLive": "x"}', "Line 2: timeToLive='x' is not a duration."),
        ('{"content": "a", "headers": {}}', "Line 2: headers={} is not accepted. Accepted: a list"),
        ('{"content": "a", "headers": ["x"]}', "Line 2: The header 'x' is not accepted."),
        ('{"content": "a", "priority": 900}', "priority is 900, but a FixedTime topic takes"),
        ('{"fixedTime": 0}', "content is None. Accepted: bytes or str"),
        ('{"content": "a"}', "fixed_time is None. Accepted for a FixedTime topic: "),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_sent(rmq, line, said):
    queue = rmq.topic()
    given = line if isinstance(line, bytes) else line.encode()
    done = rmq("send", "Orders", "--from-json", stdin=b'{"content": "z", "delay": 5}\n' + given)
    assert (done.code, said in done.err, "Nothing was sent." in done.err) == (2, True, True)
    assert queue.figures().messages == 0


def test_a_message_of_a_long_input_is_counted_from_its_beginning(rmq):
    """Failed before: from the beginning of a part of 10,000 lines."""
    rmq.topic()
    lines = [f'{{"content": "{number}", "delay": 5}}' for number in range(10_003)]
    lines[10_001] = '{"content": "a", "priority": 900}'
    done = rmq("send", "Orders", "--from-json", stdin="\n".join(lines))
    assert (done.code, "Message 10001 of topic" in done.err) == (2, True), done.err
    assert done.err.endswith(" Before that, 10,000 messages had been sent.\n")


@pytest.mark.parametrize("flag", ["--key", "--key-delimiter"])
def test_the_key_of_a_message_is_in_its_json(rmq, flag):
    rmq.topic()
    done = rmq("send", "Orders", "--from-json", flag, "a")
    assert (done.code, f"{flag} and --from-json exclude each other" in done.err) == (2, True)
