"""Topics made, listed, changed, shown and deleted by the command."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import UnknownTopic
from rmq_spark.protocol import claiming, reading
from rmq_spark.topics.definition import SETTINGS


def test_a_topic_is_made_and_listed(rmq):
    made = rmq(
        *("create", "Orders", "--type", "fixedtime", "--slots", "8", "--retries", "3"),
        *("--backoff", "10s,1m", "--jitter", "0.5", "--rate", "100/s", "--groups", "default,audit"),
        *("--max-messages", "1000", "--max-bytes", "2gb", "--time-to-live", "1h"),
        *("--unique-for", "1d"),
    )
    assert made.code == 0, made.err
    assert (
        "created: FixedTime, 8 slots, 3 retries; backoff 10s,1m (jitter 0.5); groups default, audit"
        "; at most 100/s, 100 at once" in made.out
    )
    (listed,) = rmq("topics", "--json").json
    asked = {
        "topic": "Orders",
        "topicType": "FixedTime",
        "slotAmount": 8,
        "maxRetries": 3,
        "retryBackoffMs": [10_000, 60_000],
        "retryJitter": 0.5,
        "groups": ["default", "audit"],
        "rate": "100/s",
        "maxMessages": 1000,
        "maxBytes": 2**31,
        "timeToLiveMs": 3_600_000,
        "uniqueForMs": 86_400_000,
    }
    assert listed.items() >= asked.items()
    assert listed.keys() == {"topic", "topicType", "slotAmount"} | {
        setting.json_name for setting in SETTINGS.values()
    }
    rmq.broker.server.command("HSET", f"{rmq.prefix}rmq_topics", "Later", "{}")
    told = rmq("topics")
    assert "The definition of topic Later in rmq_topics cannot be read" in told.err
    table = told.out.splitlines()
    assert table[0].split()[:3] == ["topic", "type", "slots"]
    assert table[1].split()[:3] == ["Orders", "FixedTime", "8"]


def test_a_keyed_topic_is_made_shown_and_altered(rmq):
    keyed = ("--keyed", "--payload", "FIRST")
    made = rmq("create", "Orders", "--type", "FixedTime", *keyed, "--on-expiry", "dead")
    assert made.code == 0, made.err
    assert "; keyed, keeps the first content; expired messages go to the dead queue" in made.out
    shown = rmq("show", "Orders", "--json").json
    assert (shown["keyed"], shown["payload"], shown["onExpiry"]) == (True, "first", "dead")
    assert shown["groups"][0]["counters"]["expired"] == 0
    assert "expired" in rmq("show", "Orders").out
    head, row = rmq("topics").out.splitlines()
    assert head.split()[-5:] == ["keyed", "on", "expiry", "dead", "retention"]
    assert row.split()[-3:] == ["yes", "dead", "none"]
    assert "expired messages" not in rmq("alter", "Orders", "--on-expiry", "drop").out
    assert rmq.broker.definition("Orders").on_expiry == "drop"
    assert rmq("create", "Orders", "--type", "FixedTime").code == 0  # --keyed is not given


def test_a_topic_keeps_its_dead_for_as_long_as_it_says(rmq):
    made = rmq("create", "Orders", "--type", "FixedTime", "--dead-retention", "30d")
    assert made.out.endswith("groups default; keeps the dead for 30d\n")
    assert rmq("topics").out.splitlines()[1].split()[-1] == "30d"
    altered = rmq("alter", "Orders", "--dead-retention", "5s", "--json").json
    assert altered["deadRetentionMs"] == 5000
    assert "keeps the dead" not in rmq("alter", "Orders", "--dead-retention", "none").out
    assert rmq.broker.definition("Orders").dead_retention_ms is None
    refused = rmq("alter", "Orders", "--dead-retention", "soon")
    said = "--dead-retention='soon' is not accepted. Accepted: none, or a duration with its unit"
    assert (refused.code, said in refused.err) == (2, True)


def test_whether_a_topic_is_keyed_never_changes(rmq):
    rmq.topic()
    other = rmq("create", "Orders", "--type", "FixedTime", "--keyed")
    said = "FixedTime with 4 slots, keyed false, but you asked for keyed true. This cannot change"
    assert (other.code, said in other.err) == (2, True)
    assert rmq("alter", "Orders", "--keyed").code == 2


def test_a_topic_that_is_there_is_left_as_it_is(rmq):
    rmq.topic()
    again = rmq("create", "Orders", "--type", "FixedTime", "--slots", "4", "--retries", "2")
    assert (again.code, "exists already" in again.out) == (0, True)
    assert "rmq: topic Orders exists, and keeps max_retries=16." in again.err
    assert rmq("create", "Orders", "--type", "FixedTime").err == ""
    assert rmq.broker.definition("Orders").max_retries == 16
    other = rmq("create", "Orders", "--type", "Priority")
    said = "exists as FixedTime with 4 slots, but you asked for Priority. "
    assert (other.code, said in other.err) == (2, True)
    assert f"{rmq.typed} show Orders shows it" in other.err
    assert rmq("peek", "Orders", "--group", "nope").code == 2
    assert rmq("create", "Orders", "--type", "FixedTime").code == 0  # --slots is not given


def test_the_command_that_deletes_what_is_in_the_way_deletes_that(rmq):
    rmq.topic()
    told = rmq("create", "Orders", "--type", "Priority").err
    delete = re.search(r"rmq [^,:]*-url \S+ --key-prefix \S+ delete Orders", told)[0]
    assert rmq.type(f"{delete} --yes").code == 0
    assert rmq.broker.find("Orders") is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--type is missing. Accepted: RangeMerge, Priority, FixedTime."),
        (["--type", "Fixed"], "--type='Fixed' is unknown. Accepted: RangeMerge"),
        (["--type", "Priority", "--slots", "3"], "--slots='3' is not accepted. Accepted: a power"),
        (["--type", "Priority", "--retries", "99"], "--retries='99' is not accepted"),
        (["--type", "Priority", "--backoff", "10"], "--backoff='10' is not a duration"),
        (["--type", "Priority", "--groups", "a b"], "--groups='a b' is not a group name"),
        (["--type", "Priority", "--keyed", "--payload", "x"], "--payload='x' is not accepted. Acc"),
        (["--type", "Priority", "--payload", "first"], "--payload='first' needs --keyed"),
        (["--type", "Priority", "--on-expiry", "x"], "--on-expiry='x' is not accepted. Accepted"),
    ],
)
def test_a_setting_that_is_refused_is_called_as_it_was_typed(rmq, arguments, said):
    done = rmq("create", "V", *arguments)
    assert (done.code, said in done.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--key-prefix", "shop"], "rmq: --key-prefix='shop' is not accepted"),
        (["--redis-url", "here"], "rmq: --redis-url is not accepted"),
        (["-o", "redis.socketTimeout=5"], "rmq: redis.socketTimeout='5' is not a duration"),
    ],
)
def test_a_connection_that_is_refused_is_called_as_it_was_typed(rmq, arguments, said):
    done = rmq(*arguments, "topics")
    assert (done.code, done.err.startswith(said)) == (2, True), done.err


def test_one_slot_and_one_retry_are_not_several(rmq):
    done = rmq("create", "One", "--type", "Priority", "--slots", "1", "--retries", "1")
    assert "Priority, 1 slot, 1 retry;" in done.out


def test_topics_are_chosen_by_a_regular_expression(rmq):
    rmq.topic("A.one")
    rmq.topic("A.two")
    assert [t["topic"] for t in rmq("topics", "A.t.*", "--json").json] == ["A.two"]
    assert rmq("topics", "A").code == 3
    assert rmq("topics", "A", "--json").json == []
    assert "is not a regular expression" in rmq("topics", "(").err


def test_without_topics_nothing_is_wrong(rmq):
    told = rmq("topics")
    said = f"There are no topics with the key prefix {rmq.prefix}.\n"
    assert (told.code, told.out) == (0, said)


def test_the_environment_can_name_the_key_prefix(rmq):
    rmq.topic()
    words = ["--redis-url", rmq.url]
    assert "Orders" in rmq._run([*words, "topics"], RMQ_KEY_PREFIX=rmq.prefix).out
    typed = rmq._run([*words, "--key-prefix", "no:", "topics"], RMQ_KEY_PREFIX=rmq.prefix)
    assert (typed.code, "Orders" in typed.out) == (0, False)
    wrong = rmq._run([*words, "topics"], RMQ_KEY_PREFIX="shop")
    assert (wrong.code, "='shop' is not accepted" in wrong.err) == (2, True)


def test_a_forgotten_key_prefix_is_a_reason_for_no_topics(rmq):
    told = rmq("--key-prefix", "", "topics", url=re.sub(r"/\d+$", "/9", rmq.url))
    assert "without a key prefix (--key-prefix)." in told.out


def test_retries_backoff_and_groups_are_changed(rmq):
    rmq.topic()
    wanted = "--retries 2 --backoff 5s --exclusive --add-group audit"
    done = rmq("alter", "Orders", *wanted.split())
    assert done.code == 0, done.err
    found = rmq.broker.definition("Orders")
    assert (found.max_retries, found.retry_backoff_ms, found.exclusive) == (2, (5000,), True)
    assert found.groups == ("", "audit")
    assert rmq("alter", "Orders", "--add-group", "audit").code == 0  # it is there already


def test_a_group_with_messages_goes_only_with_drop(rmq):
    queue = rmq.topic(groups=["", "audit"])
    queue.send(["m"], fixed_time=99)
    kept = rmq("alter", "Orders", "--remove-group", "audit")
    assert (kept.code, "holds 1 message: 1 stored" in kept.err) == (1, True)
    gone = rmq("alter", "Orders", "--remove-group", "audit", "--drop")
    assert (gone.code, "removed group audit with 1 message" in gone.out) == (0, True)
    rmq.topic("More", groups=["", "audit"])
    gone = rmq("alter", "More", "--remove-group", "audit", "--json").json
    assert (gone["removedGroup"], gone["messages"]) == ("audit", 0)


def test_an_error_names_the_flag_and_the_command_beside_what_python_calls(rmq):
    """Failed before: the command line was told to call Broker.delete, and to set keyed=True."""
    rmq.topic(groups=["", "audit"], exclusive=True)
    command = f"rmq --redis-url {rmq.url} --key-prefix {rmq.prefix}"
    rmq.broker.queue("Orders", group="audit").send(["m"], fixed_time=99)
    for words, said in (
        ("alter Orders --remove-group audit", "with drop=True, or --drop."),
        (
            "schedule s Orders m --every 1s --key a",
            "another topic with keyed=True, or --keyed.",
        ),
        ("consume Orders", "exclusive=False), or rmq alter Orders --no-exclusive."),
    ):
        assert said in rmq(*words.split()).err
    assert rmq("alter", "Orders", "--remove-group", "audit", "--drop").code == 0
    assert (
        f"To delete the topic, use broker.delete('Orders'), or {command} delete Orders."
        in rmq("alter", "Orders", "--remove-group", "default").err
    )
    assert (
        f"with broker.add_group, or {command} alter Orders --add-group b."
        in rmq("create", "Orders", "--type", "FixedTime", "--groups", "default,b").err
    )


def test_a_group_without_a_name_is_none(rmq):
    """In a script, a variable that is not set must not name the default group."""
    rmq.topic(groups=["", "audit"])
    for flag, *arguments in (
        ["--remove-group", "alter", "Orders", "--drop"],
        ["--add-group", "alter", "Orders"],
        ["--group", "peek", "Orders"],
    ):
        done = rmq(*arguments, flag, "")
        said = f"rmq: {flag}='' is not a group name. Accepted: default"
        assert (done.code, done.err.startswith(said)) == (2, True)
    assert rmq.broker.definition("Orders").groups == ("", "audit")


def test_altering_nothing_says_what_can_be_altered(rmq):
    rmq.topic()
    done = rmq("alter", "Orders")
    assert (done.code, "--retries, --backoff" in done.err) == (2, True)


def test_a_topic_is_paused_and_resumed(rmq):
    rmq.topic()
    assert rmq("pause", "Orders").code == 0
    assert rmq.broker.definition("Orders").paused
    assert rmq("resume", "Orders").code == 0
    assert not rmq.broker.definition("Orders").paused


def test_a_topic_is_held_which_show_and_consume_tell(rmq):
    queue = rmq.topic()
    queue.send(["m"], fixed_time=99)
    queue.send(["later"], delay="1h")
    held = rmq("hold", "Orders", "1h")
    assert held.out == "Orders: held; no consumer gets new messages for 1h\n"
    held = rmq("hold", "Orders", "1h", "--group", "default", "--json")  # failed before: no delay
    assert held.json == {"topic": "Orders", "group": "default", "delayMs": 3_600_000}
    until = rmq("show", "Orders", "--json").json["groups"][0]["heldUntil"]
    assert f"group default, held until {until}\n" in rmq("show", "Orders").out
    done = rmq("consume", "Orders")
    assert done.code == 3
    # Failed before: what was due and held was said to wait for its time.
    assert f"Orders: 1 due, but held until {until}. Waiting for their time: 1 (" in done.out
    assert rmq("resume", "Orders").code == 0
    assert "held" not in rmq("show", "Orders").out.splitlines()[2]
    assert "m" in rmq("consume", "Orders").out
    refused = rmq("hold", "Orders", "soon")
    # Failed before: the error also named a timedelta and ms, which only Python can give.
    assert (refused.code, refused.err) == (
        2,
        "rmq: DELAY='soon' is not a duration. Accepted: a number with its unit, one of ms, s, m, h "
        "or d, such as 500ms, 60s or 5m.\n",
    )


def test_of_very_many_consumers_show_lists_the_last(rmq):
    queue = rmq.topic(slots=1)
    known = [text for name in range(53) for text in (f"pod-{name}", f"1 0 0 0 {name}")]
    queue.server.command("HSET", queue.keys.consumers(0), *known)
    told = rmq("show", "Orders").out
    assert ("pod-52" in told, "pod-2 " in told) == (True, False)
    assert told.endswith("3 consumers more, seen longer ago: --json lists all.\n")
    assert len(rmq("show", "Orders", "--json").json["groups"][0]["consumers"]) == 53


def test_a_group_is_paused_shown_and_resumed(rmq):
    rmq.topic(groups=("", "audit"))
    paused = rmq("pause", "Orders", "--group", "audit").out
    assert "Orders: paused for the group audit; no consumer of it gets new messages" in paused
    assert rmq.broker.definition("Orders").paused_groups == ("audit",)
    assert "paused groups audit" in rmq("show", "Orders").out
    told = rmq("consume", "Orders", "--group", "audit").out
    assert "resume Orders --group audit" in told
    assert "resumed for the group audit" in rmq("resume", "Orders", "--group", "audit").out
    assert rmq.broker.definition("Orders").paused_groups == ()
    assert rmq("pause", "Orders", "--group", "other").code == 2


def test_the_pause_of_a_group_outlasts_that_of_the_topic(rmq):
    """Failed before: the operator's pause for an upgrade ended that of a team."""
    rmq.topic(groups=("", "audit"))
    for order in (("--group", "audit"), ()), ((), ("--group", "audit")):
        for options in order:
            assert rmq("pause", "Orders", *options).code == 0
        done = rmq("resume", "Orders")
        assert done.out == "Orders: resumed, but not for audit: each was paused by --group\n"
        assert rmq.broker.definition("Orders").paused_groups == ("audit",)
        assert rmq("resume", "Orders").out == "Orders: resumed\n"
        assert rmq.broker.definition("Orders").paused_groups == ()


def test_a_topic_is_shown_with_queues_counters_and_consumers(rmq):
    queue = rmq.topic()
    queue.send(["a", "b", "c"], fixed_time=99)
    rmq.broker.consumer("Orders", "clerk").poll(2)
    told = rmq("show", "Orders", "--json").json
    (group,) = told["groups"]
    assert {q["queue"]: q["messages"] for q in group["queues"]} == {
        "store": 1, "prepare": 2, "retry": 0, "dead": 0,
    }  # fmt: skip
    assert group["counters"]["claimed"] == 2
    assert group["consumers"][0]["consumer"] == "clerk"
    firsts = {q["queue"]: {*q} - {"queue", "messages", "due"} for q in group["queues"]}
    assert firsts == {"store": {"dueTime"}, "prepare": {"leaseEnds"}, "retry": set(), "dead": set()}
    text = rmq("show", "Orders").out
    assert "lease ends" in text
    assert "clerk" in text


@pytest.mark.parametrize(
    "command",
    [
        *(
            ["show"],
            ["lower-epochs"],
            ["delete", "--yes"],
            ["pause"],
            ["resume"],
            ["alter", "--retries", "1"],
        ),
        *(["peek"], ["send", "m"], ["cancel", "m"], ["requeue", "m"], ["purge", "m", "--yes"]),
        *(["expire"], ["top", "--times", "1"], ["consume"], ["due"]),
    ],
)
def test_a_topic_that_does_not_exist_is_told_with_the_nearest_names(rmq, command):
    rmq.topic("Orders")
    rmq.topic("Parcels")
    name, *rest = command
    done = rmq(name, "orderz", *rest)
    assert done.code == 2
    assert "The topic orderz does not exist" in done.err
    assert "Similar: Orders" in done.err
    assert "Traceback" not in done.err


def test_a_topic_is_deleted_only_when_that_is_said(rmq):
    rmq.topic().send(["a"], fixed_time=99)
    asked = rmq("delete", "Orders")
    assert (asked.code, "stdin is not a terminal. To go ahead, add --yes" in asked.err) == (2, True)
    assert rmq.broker.find("Orders")
    assert "with 1 message" in rmq("delete", "Orders", "--yes").out
    assert rmq.broker.find("Orders") is None


def test_what_was_done_is_told_as_json(rmq):
    def told(*arguments):
        return rmq(*arguments, "--json").json

    assert told("create", "Orders", "--type", "FixedTime")["created"] is True
    assert told("alter", "Orders", "--retries", "0")["maxRetries"] == 0
    assert told("pause", "Orders")["paused"] is True
    assert told("resume", "Orders")["paused"] is False
    sent = told("send", "Orders", "a", "a", "b", "--fixed-time", "0")
    assert sent == {"topic": "Orders", "new": 2, "merged": 1}
    assert told("cancel", "Orders", "a") == {"topic": "Orders", "messages": 1}
    assert told("requeue", "Orders", "--all") == {"topic": "Orders", "messages": 0}
    assert told("purge", "Orders", "x", "--yes") == {"topic": "Orders", "messages": 0}
    assert told("expire", "Orders") == {"topic": "Orders", "messages": 0, "forgotten": 0}
    assert told("lower-epochs", "Orders") == {"topic": "Orders", "slots": 0}
    assert told("delete", "Orders", "--yes") == {"topic": "Orders", "messages": 1, "schedules": []}


def loops(broker):
    """What a plain consumer does before it ends, in several ways."""
    with broker.consumer("Orders", "commits") as consumer:
        for batch in consumer.batches(limit=3, wait=False):
            batch.rollback(list(batch)[:1], delay="1h")
            batch.commit()
            break
    with broker.consumer("Orders", "leaves") as consumer:
        consumer.poll(3)
    with broker.consumer("Orders", "rolls-back") as consumer:
        consumer.poll(3).rollback()


def test_after_the_end_of_a_consumer_it_holds_no_slot(rmq):
    queue = rmq.topic()
    queue.send([f"m{n}" for n in range(20)], fixed_time=99)
    loops(rmq.broker)
    (group,) = rmq("show", "Orders", "--json").json["groups"]
    assert group["queues"][1] == {"queue": "prepare", "messages": 0, "due": 0}
    assert len(group["consumers"]) == 3
    assert [seen["heldSlots"] for seen in group["consumers"]] == [0, 0, 0]


def test_a_consumer_whose_lease_has_ended_holds_nothing_that_others_have_taken(rmq):
    queue = rmq.topic(slots=1)
    queue.send(["a", "b"], fixed_time=99)
    rmq.broker.consumer("Orders", "dying", visibility_timeout="1ms").poll()

    def held():
        (group,) = rmq("show", "Orders", "--json").json["groups"]
        return {seen["consumer"]: seen["heldSlots"] for seen in group["consumers"]}

    assert held() == {"dying": 1}
    other = rmq.broker.consumer("Orders", "other")
    batch = other.poll(1)
    assert held() == {"dying": 0, "other": 1}
    batch.commit()
    assert held() == {"dying": 0, "other": 0}


def test_a_lease_that_was_ended_is_no_time_long_past(rmq):
    """As releaseOnStop=true ends those of a query."""
    queue = rmq.topic()
    queue.send(["m"], fixed_time=99)
    consumer = rmq.broker.consumer("Orders", "clerk")
    consumer.poll()
    run = max(header.run for header in queue.ask(reading.headers, "clerk"))
    queue.ask(claiming.release, queue.slots, "clerk", run)
    (group,) = rmq("show", "Orders", "--json").json["groups"]
    assert group["queues"][1] == {"queue": "prepare", "messages": 1, "due": 1}
    text = rmq("show", "Orders").out
    assert "1970" not in text
    expire = f"{rmq.typed} expire Orders"
    assert f"lease has ended; the next consumer or {expire} gives it back" in text
    assert rmq.type(expire).out == "Orders: 1 message given back\n"


@pytest.mark.parametrize(
    "command",
    [["alter", "Orders", "--remove-group", "audit", "--drop"], ["delete", "Orders", "-y"]],
)
def test_what_is_sent_by_who_does_not_know_of_the_end_is_deleted_too(rmq, monkeypatch, command):
    """Failed before: it stayed unseen, and was delivered once the group or the topic was back."""
    monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 0.2)  # of this sender
    rmq.topic(groups=["default", "audit"])
    ended = threading.Event()

    def send():
        with connect(rmq.url, key_prefix=rmq.prefix) as other, suppress(UnknownTopic):
            queue = other.queue("Orders")
            while not ended.is_set():
                queue.send(["late"], fixed_time=99)

    with ThreadPoolExecutor() as pool:
        sender = pool.submit(send)
        assert rmq(*command).code == 0
        ended.set()
        sender.result()
    left = rmq.broker.server.client.keys(f"{rmq.prefix}*")
    of_default = [key for key in left if b"@audit" not in key and command[0] == "alter"]
    assert [key for key in left if key not in of_default and b"topics" not in key] == []
