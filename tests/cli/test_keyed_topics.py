"""Keys, headers and expiry on the command line."""

import base64

import pytest

from rmq_spark.client import Message

YEAR_2100 = "2100-01-01T00:00:00.000Z"


@pytest.fixture
def keyed(rmq):
    return rmq.topic(keyed=True)


def sent(rmq, *arguments, stdin=""):
    return rmq("send", "Orders", *arguments, "--fixed-time", "now", stdin=stdin)


def stored(rmq, *arguments):
    found = rmq("peek", "Orders", "--json", *arguments).lines
    return {entry["key"]: entry for entry in found}


def test_a_message_has_a_key_a_content_headers_and_an_end(rmq, keyed):
    done = sent(
        *(rmq, "--key", "order-7", "paid", "--header", "source=web=shop", "--header", "source="),
        *("--expires-at", YEAR_2100),
    )
    assert (done.code, done.out) == (0, "Orders: 1 new, 0 merged\n")
    (entry,) = rmq("peek", "Orders", "--json").lines
    assert entry["slot"] == keyed.definition.slot_of(b"order-7")
    carried = {name: entry[name] for name in ("key", "content", "headers", "expiresAt")}
    assert carried == {
        "key": "order-7",
        "content": "paid",
        "headers": [{"key": "source", "value": "web=shop"}, {"key": "source", "value": ""}],
        "expiresAt": YEAR_2100,
    }
    assert "order-7 paid" in rmq("peek", "Orders").out
    (got,) = rmq("consume", "Orders", "--json").lines
    assert {name: got[name] for name in carried} == carried
    assert "order-7 paid" in rmq("consume", "Orders").out


def test_a_key_that_is_sent_again_gets_the_last_content(rmq, keyed):
    assert sent(rmq, "--key", "a", "one").code == 0
    assert sent(rmq, "--key", "a", "two").out == "Orders: 0 new, 1 merged\n"
    assert stored(rmq)["a"]["content"] == "two"


def test_a_key_may_have_no_content(rmq, keyed):
    assert sent(rmq, "--key", "gone", stdin="not read").out == "Orders: 1 new, 0 merged\n"
    assert stored(rmq)["gone"]["content"] is None


def test_with_a_key_a_dash_alone_is_the_content(rmq, keyed):
    assert sent(rmq, "--key", "a", "-", stdin="not read").out == "Orders: 1 new, 0 merged\n"
    assert stored(rmq)["a"]["content"] == "-"


def test_lines_have_their_keys_before_a_delimiter(rmq, keyed):
    done = sent(rmq, "--key-delimiter", ": ", stdin="a: 1\nb: 2: 3\nc\nd: \n")
    assert done.out == "Orders: 4 new, 0 merged\n"
    contents = {key: entry["content"] for key, entry in stored(rmq).items()}
    assert contents == {"a": "1", "b": "2: 3", "c": None, "d": ""}
    assert sent(rmq, "--key-delimiter", "=", "a=4", "e=5").out == "Orders: 1 new, 1 merged\n"


def test_a_header_of_bytes_is_shown_in_base64(rmq):
    queue = rmq.topic()
    headers = [("id", b"\xff"), ("none", None)]
    queue.send([Message("m", headers=headers)], fixed_time=0)
    (entry,) = rmq("peek", "Orders", "--json").lines
    assert entry["headers"] == [
        {"key": "id", "valueBase64": base64.b64encode(b"\xff").decode()},
        {"key": "none", "value": None},
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("m",), "No key is given. Topic Orders is keyed. Accepted: --key KEY with one content"),
        (("m", "--key", "a", "--key-delimiter", "="), "--key and --key-delimiter exclude each"),
        (("m", "n", "--key", "a"), "--key='a' is for one message, but there are 2 contents"),
        (("m", "--key", ""), "--key is 0 bytes long. Accepted: 1 to 1,024 bytes"),
        (("m", "--key", "x" * 1025), "--key is 1,025 bytes long"),
        (("m", "--key-delimiter", ""), "--key-delimiter='' is not accepted"),
        (("=m", "--key-delimiter", "="), "Message 1 ('=m'): the key before --key-delimiter is 0 b"),
        (("m", "--key", "a", "--header", "web"), "--header='web' is not accepted. Accepted: a na"),
        (("m", "--key", "a", "--header", "=web"), "--header='=web' is not accepted"),
        (("m", "--key", "a", "--time-to-live", "soon"), "--time-to-live='soon' is not a duration"),
        (("m", "--key", "a", "--expires-at", "soon"), "--expires-at='soon' is not accepted"),
        (("m", "--key", "a", "--expires-at", "-1h"), "before the message is due"),
        (
            ("m", "--key", "a", "--expires-at", "1h", "--time-to-live", "1h"),
            "--time-to-live and --expires-at exclude each other",
        ),
    ],
)
def test_what_is_refused_is_named(rmq, keyed, arguments, said):
    done = sent(rmq, *arguments)
    assert (done.code, said in done.err) == (2, True), done.err
    assert keyed.figures().counters["accepted"] == 0


@pytest.mark.parametrize("flag", ["--key", "--key-delimiter"])
def test_a_topic_without_keys_takes_none(rmq, flag):
    rmq.topic()
    done = sent(rmq, "m", flag, "=")
    said = f"{flag} is not for topic Orders, which is not keyed: its messages merge by their"
    assert (done.code, said in done.err) == (2, True)


def test_the_command_that_creates_a_missing_topic_creates_a_keyed_one(rmq):
    done = sent(rmq, "m", "--key", "a")
    create = f"{rmq.typed} create Orders --type FixedTime --keyed"
    assert (done.code, f"`{create}`" in done.err) == (2, True)
    assert rmq.type(create).code == 0
    assert sent(rmq, "m", "--key", "a").code == 0


def test_messages_are_cancelled_requeued_and_purged_by_their_keys(rmq):
    queue = rmq.topic(keyed=True, on_expiry="dead")
    by_key = "Topic Orders is keyed: these were taken for keys of messages."
    assert sent(rmq, "--key-delimiter", "=", "a=1", "b=2", "c=3", "d=4").code == 0
    for command in (("cancel",), ("purge", "--yes"), ("requeue",)):
        done = rmq(command[0], "Orders", "1", *command[1:])
        assert (done.code, by_key in done.err) == (3, True)
    assert rmq("cancel", "Orders", "a").out == "Orders: 1 message cancelled\n"
    with rmq.broker.consumer("Orders", "clerk") as clerk:
        while queue.figures().dead.count < 3:
            clerk.poll().rollback(delay="0ms", reason="no clerk")
    assert {entry["key"]: entry["content"] for entry in rmq("dead", "Orders", "--json").lines} == {
        "b": "2",
        "c": "3",
        "d": "4",
    }
    assert "b 2" in rmq("dead", "Orders").out
    assert rmq("requeue", "Orders", "b").out == "Orders: 1 message requeued\n"
    assert stored(rmq)["b"]["content"] == "2"
    assert rmq("purge", "Orders", "c", "--yes").out == "Orders: 1 message deleted\n"
    assert rmq("requeue", "Orders", "--all").out == "Orders: 1 message requeued\n"
    assert rmq("purge", "Orders", "--all", "--queue", "store", "--yes").code == 0
    assert queue.figures().messages == 0


def send_expired(rmq):
    long_ago = ("--fixed-time", "-1h", "--time-to-live", "1ms")
    assert rmq("send", "Orders", "late", "--key", "a", *long_ago).code == 0
    assert rmq("consume", "Orders").code == 3


def test_what_expires_is_counted(rmq, keyed):
    send_expired(rmq)
    assert rmq("show", "Orders", "--json").json["groups"][0]["counters"]["expired"] == 1
    assert keyed.figures().messages == 0


def test_what_expires_may_lie_with_the_dead(rmq):
    rmq.topic(keyed=True, on_expiry="dead")
    send_expired(rmq)
    (entry,) = rmq("dead", "Orders", "--json").lines
    assert (entry["key"], entry["content"], entry["reason"]) == ("a", "late", "expired")
    assert "consumer" not in entry
    assert rmq("show", "Orders", "--json").json["groups"][0]["counters"]["dead"] == 1


def test_a_corrected_message_is_accepted_again(rmq):
    """Failed before: it took a program in Python."""
    rmq("create", "Paid", "--type", "FixedTime", "--slots", "16", "--keyed", "--unique-for", "1d")
    line = '{"key": "a", "content": "v%d", "slotBasis": "ann", "fixedTime": "now"}\n'
    sent = ("send", "Paid", "--from-json")
    assert rmq(*sent, stdin=line % 1).out == "Paid: 1 new, 0 merged, 0 repeated\n"
    with rmq.broker.consumer("Paid", "c") as consumer:
        consumer.poll().commit()
    assert rmq(*sent, stdin=line % 2).out == "Paid: 0 new, 0 merged, 1 repeated\n"
    assert rmq(*sent, "--again", stdin=line % 2).out == "Paid: 1 new, 0 merged, 0 repeated\n"
    assert rmq(*sent, stdin=line % 3).out == "Paid: 0 new, 0 merged, 1 repeated\n"
    own = ("send", "Paid", "w", "--key", "a", "--slot-basis", "ann", "--fixed-time", "now")
    assert rmq(*own, "--again").out == "Paid: 0 new, 1 merged, 0 repeated\n"
