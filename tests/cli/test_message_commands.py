"""Messages looked at, sent, cancelled, requeued and purged by the command."""

import re
import signal
import subprocess
from datetime import UTC, datetime
from time import sleep

import pytest

from rmq_spark.client import connect
from rmq_spark.protocol.pages import QueueKind

from ..waiting import wait_until
from .running import bury, on_a_terminal, started

HOUR_MS = 3_600_000


def test_messages_are_sent_and_looked_at(rmq):
    rmq.topic()
    sent = rmq("send", "Orders", "a", "b", "a", "--fixed-time", "2030-01-01T00:00Z")
    assert (sent.code, sent.out) == (0, "Orders: 2 new, 1 merged\n")
    found = rmq("peek", "Orders", "--json").lines
    assert sorted(found, key=lambda entry: entry["content"]) == [
        {
            "topic": "Orders",
            "queue": "store",
            "slot": rmq.broker.definition("Orders").slot_of(content),
            "content": content.decode(),
            "dueTime": "2030-01-01T00:00:00.000Z",
            "retriesLeft": 16,
        }
        for content in (b"a", b"b")
    ]
    assert "2030-01-01T00:00:00.000Z" in rmq("peek", "Orders").out


def test_a_far_time_is_shown_to_the_millisecond(rmq):
    queue = rmq.topic()
    for time in (datetime.max, datetime(2242, 3, 22, 0, 30, 59, 489000)):
        queue.send([str(time)], fixed_time=time.replace(tzinfo=UTC))
    shown = sorted(entry["dueTime"] for entry in rmq("peek", "Orders", "--json").lines)
    assert shown == ["2242-03-22T00:30:59.489Z", "9999-12-31T23:59:59.999Z"]
    queue.send(["beyond"], fixed_time=253402300800000)
    assert "253402300800000 ms" in rmq("peek", "Orders").out


def due_times(queue):
    pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
    return {entry.content: entry.due_time_ms for page in pages for entry in page.entries()}


def test_a_time_may_be_a_duration_from_now(rmq):
    queue = rmq.topic()
    before = queue.now_ms()
    for content, time in (("soon", "30s"), ("ago", "-1h"), ("now", "now"), ("again", "+1.5h")):
        assert rmq("send", "Orders", content, "--fixed-time", time).code == 0
    after = queue.now_ms()
    assert rmq("send", "Orders", "ms", "--fixed-time", "1893456000000").code == 0
    found = due_times(queue)
    for content, wait_ms in (
        (b"soon", 30_000),
        (b"ago", -HOUR_MS),
        (b"now", 0),
        (b"again", 5_400_000),
    ):
        assert before + wait_ms <= found[content] <= after + wait_ms
    assert found[b"ms"] == 1_893_456_000_000

    def peeked(*span):
        return {entry["content"] for entry in rmq("peek", "Orders", "--json", *span).lines}

    assert peeked("--until", "now") == {"ago", "now"}
    assert peeked("--from", "now", "--until", "1h") <= {"soon"}
    assert peeked("--from", "-2h", "--until", "-30m") == {"ago"}


def test_a_delay_is_counted_from_when_a_message_is_stored(rmq):
    queue = rmq.topic()
    bury(queue, b"dead")
    before = queue.now_ms()
    assert rmq("send", "Orders", "moved", "--delay", "5m").out == "Orders: 1 new, 0 merged\n"
    assert rmq("send", "Orders", "moved", "--delay", "1h").out == "Orders: 0 new, 1 merged\n"
    assert rmq("send", "Orders", "ms", "--delay", "3600000").code == 0
    assert rmq("requeue", "Orders", "dead", "--delay", "1h").code == 0
    after = queue.now_ms()
    found = due_times(queue)
    assert found.keys() == {b"moved", b"ms", b"dead"}
    assert all(before + HOUR_MS <= due_ms <= after + HOUR_MS for due_ms in found.values())


@pytest.mark.parametrize("command", ["send", "requeue"])
def test_a_delay_that_does_not_fit_is_refused(rmq, command):
    queue = rmq.topic()
    rmq.topic("Merged", "RangeMerge")
    for topic, values, said in (
        ("Orders", ("--delay", "-5"), "--delay='-5' is not accepted. Accepted: 0 to 45035996273"),
        ("Orders", ("--delay", "soon"), "--delay='soon' is not a duration"),
        ("Orders", ("--delay", "5m", "--fixed-time", "1h"), "--fixed-time and --delay exclude"),
        ("Merged", ("--delay", "5m"), "--delay is not for topic Merged, which is RangeMerge. Acc"),
    ):
        done = rmq(command, topic, "m", *values)
        assert (done.code, said in done.err) == (2, True)
    assert queue.figures().counters["accepted"] == 0


@pytest.mark.parametrize("name", ["--fixed-time", "--from"])
def test_a_time_in_seconds_is_not_taken_for_one_in_1970(rmq, name):
    rmq.topic()
    command = ("send", "Orders", "m") if name == "--fixed-time" else ("peek", "Orders")
    done = rmq(*command, name, "30")
    said = f"{name}='30' would be 1970-01-01T00:00:00.030Z. Accepted: 30s if you mean seconds from"
    assert (done.code, said in done.err) == (2, True)


def test_dead_messages_are_chosen_by_how_long_ago_and_come_back_later(rmq):
    queue = rmq.topic()
    queue.server.client.zadd(queue.keys.dead(0), {"lately": queue.now_ms() - 1000, "old": 1000})
    assert rmq("requeue", "Orders", "--all", "--from", "-1h", "--fixed-time", "10m").code == 0
    (due_ms,) = due_times(queue).values()
    assert queue.now_ms() + 9 * 60_000 < due_ms <= queue.now_ms() + 10 * 60_000
    assert rmq("purge", "Orders", "--all", "--until", "-1h", "--yes").out == (
        "Orders: 1 message deleted\n"
    )


@pytest.mark.parametrize(
    ("value", "fitting", "others"),
    [
        (["--fixed-time", "30s"], "FixedTime", ""),
        (["--delay", "30s"], "FixedTime", ""),
        (["--time-range", "30s"], "RangeMerge", ""),
        (["--priority", "20"], "Priority", ""),
        ([], "FixedTime", " (or RangeMerge, Priority)"),
    ],
)
def test_a_topic_that_is_not_there_is_named_with_the_command_that_makes_it(
    rmq, value, fitting, others
):
    rmq.topic("Order")
    done = rmq("send", "Orders", "m", *value)
    assert done.code == 2
    create = f"{rmq.typed} create Orders --type {fitting}"
    said = f"Similar: Order. Create it with `{create}`{others}, then send again."
    assert said in done.err
    assert rmq.type(create).code == 0
    assert rmq("send", "Orders", "m", *(value or ["--fixed-time", "1s"])).code == 0


def test_lines_of_stdin_are_sent_as_they_are(rmq):
    queue = rmq.topic("Ranked", "Priority")
    lines = b"one\n\xff\xfe\r\n\nlast"
    assert rmq("send", "Ranked", "--priority", "20", stdin=lines).out == "Ranked: 4 new, 0 merged\n"
    found = rmq("peek", "Ranked", "--json").lines
    assert sorted(e.get("content", e.get("contentBase64")) for e in found) == [
        *("", "//4=", "last", "one"),
    ]
    assert queue.figures().store.count == 4


def test_a_dash_alone_is_stdin_and_among_others_a_content(rmq):
    rmq.topic("Ranked", "Priority")
    words = ["send", "Ranked", "--priority", "20"]
    assert rmq(*words, "-", stdin="one\ntwo\n").out == "Ranked: 2 new, 0 merged\n"
    assert rmq(*words, "--", "-", "three", stdin="not read").out == "Ranked: 2 new, 0 merged\n"
    found = {shown["content"] for shown in rmq("peek", "Ranked", "--json").lines}
    assert found == {"one", "two", "-", "three"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("how", "lines"),
    [
        (["--fixed-time", "0"], b"a\r\nb\nbegun"),
        (["--from-json"], b'\n{"content": "a", "delay": 1}\n\n{"content": "b", "delay": 1}\n\n'),
    ],
)
def test_lines_of_a_pipe_are_sent_while_it_stays_open(rmq, number, how, lines):
    """Failed before: nothing was sent before 10,000 lines, and a signal lost them in silence."""
    queue = rmq.topic(slots=1)
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    with started([*rmq.command(), "send", "Orders", *how], **pipes) as process:
        process.stdin.write(lines)
        process.stdin.flush()
        wait_until(lambda: queue.figures().messages == 2, "both lines are sent")
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        assert process.stdout.read() == b"Orders: 2 new, 0 merged\n"
        assert b"A signal ended rmq. What it had not read was not sent." in process.stderr.read()
    assert {entry.content for entry in queue.find(["a", "b"])} == {b"a", b"b"}


def test_lines_that_come_one_by_one_do_not_wait_for_a_pause(rmq):
    queue = rmq.topic(slots=1)
    command = [*rmq.command(), "send", "Orders", "--fixed-time", "0"]
    with started(command, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"first\n")
        process.stdin.flush()
        wait_until(lambda: queue.figures().messages, "the first line is sent")
        for number in range(9_000):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            if queue.figures().messages > 1:
                break
        else:
            pytest.fail("9,000 lines waited for a pause")
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert queue.figures().messages == number + 2


def test_a_content_is_shown_as_it_is_also_where_it_looks_like_markup(rmq):
    rmq.topic().send(["[red]alarm[/red]", "[/nothing]"], fixed_time=99)
    out = rmq("peek", "Orders").out
    assert "[red]alarm[/red]" in out
    assert "[/nothing]" in out


def test_a_content_does_not_move_the_cursor(rmq):
    rmq.topic().send([b"\x1b[2Jgone\n\xff"], fixed_time=99)
    out = rmq("peek", "Orders").out
    assert "\\x1b[2Jgone\\n\\xff" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("command", ["send", "requeue"])
def test_a_value_of_another_type_is_refused_not_ignored(rmq, command):
    queue = rmq.topic("Ranked", "Priority")
    done = rmq(command, "Ranked", "m", "--priority", "20", "--time-range", "3s")
    told = "--time-range is not for topic Ranked, which is Priority. Accepted: --priority. Nothing"
    assert (done.code, told in done.err) == (2, True)
    assert queue.figures().counters["accepted"] == 0


def test_a_requeue_that_finds_nothing_says_where_to_look(rmq):
    queue = rmq.topic(max_retries=0)
    queue.send(["m"], fixed_time=99, slot_basis="customer 7")
    rmq.broker.consumer("Orders", "clerk").poll().rollback()
    done = rmq("requeue", "Orders", "m")
    assert (done.code, done.out) == (3, "Orders: 0 messages requeued\n")
    assert "add --slot-basis, or --slots; if another consumer group had them, --group" in done.err
    assert rmq("requeue", "Orders", "m", "--slot-basis", "customer 7").err == ""
    assert queue.figures().dead.count == 0


def test_a_value_that_a_topic_needs_and_does_not_get_is_named(rmq):
    rmq.topic("Ranked", "Priority")
    done = rmq("send", "Ranked", "m")
    assert (
        done.code,
        "is Priority. Add --priority. Accepted: a whole number, 17 to" in done.err,
    ) == (
        2,
        True,
    )
    assert "a whole number, 17 to" in rmq("send", "Ranked", "m", "--priority", "3").err
    rmq.topic("Merged", "RangeMerge")
    told = rmq("send", "Merged", "m", "--time-range", "soon").err
    assert "--time-range='soon' is not a duration" in told
    rmq.topic("Timed", "FixedTime")
    assert "Add --fixed-time or --delay. Accepted: 30s (from now)" in rmq("send", "Timed", "m").err
    assert "ISO 8601 with a zone" in rmq("send", "Timed", "m", "--fixed-time", "soon").err


def test_other_queues_times_and_slots_are_looked_at(rmq):
    queue = rmq.topic()
    bury(queue, b"d0", b"d1", b"d2")
    found = rmq(
        "peek", "Orders", "--queue", "dead", "--from", "1970-01-01T00:00:01.001Z", "--json"
    ).lines
    assert {entry["content"] for entry in found} == {"d1", "d2"}
    slot = queue.definition.slot_of(b"d0")
    (only,) = rmq(
        "peek",
        "Orders",
        "--queue",
        "all",
        "--slots",
        str(slot),
        "--until",
        "1970-01-01T00:00:01.001Z",
        "--json",
    ).lines
    assert (only["content"], only["diedAt"]) == ("d0", "1970-01-01T00:00:01.000Z")
    assert len(rmq("peek", "Orders", "--queue", "dead", "-n", "2", "--json").lines) == 2


def test_a_filter_that_matches_nothing_says_so(rmq):
    rmq.topic()
    done = rmq("peek", "Orders", "--queue", "dead")
    assert (done.code, done.out) == (3, "Orders: no message matches\n")
    assert (rmq("peek", "Orders", "--json").code, rmq("peek", "Orders", "--json").out) == (3, "")
    for command in ("requeue", "purge"):
        extra = ["--yes"] if command == "purge" else []
        done = rmq(command, "Orders", "--all", "--from", "-1h", *extra)
        assert (done.code, "0 messages" in done.out) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--queue", "ded"], "queue='ded' is not accepted"),
        (["--slots", "x"], "slots='x'"),
        (["--from", "soon"], "--from='soon'"),
        (["--group", "other"], "--group='other' is not a consumer group"),
    ],
)
def test_a_choice_that_is_none_is_refused(rmq, arguments, said):
    rmq.topic()
    done = rmq("peek", "Orders", *arguments)
    assert (done.code, said in done.err) == (2, True)


def test_messages_are_cancelled_in_all_groups_or_one(rmq):
    queue = rmq.topic(groups=["", "audit"])
    queue.send(["a", "b"], fixed_time=99)
    assert rmq("cancel", "Orders", "a").out == "Orders: 2 messages cancelled\n"
    assert rmq("cancel", "Orders", "b", "--group", "audit").out == "Orders: 1 message cancelled\n"
    nothing = rmq("cancel", "Orders", "a")
    assert (nothing.code, nothing.out) == (3, "Orders: 0 messages cancelled\n")


def test_dead_messages_come_back_due_at_once_or_when_it_is_said(rmq):
    queue = rmq.topic()
    bury(queue, b"d0", b"d1", b"d2")
    assert rmq("requeue", "Orders", "d0").code == 0
    done = rmq("requeue", "Orders", "--all", "--fixed-time", "2030-01-01T00:00Z")
    assert done.out == "Orders: 2 messages requeued\n"
    store = queue.figures().store
    assert (store.count, store.due, queue.figures().dead.count) == (3, 1, 0)


def test_more_dead_messages_than_a_page_holds_come_back(rmq):
    queue = rmq.topic(slots=1)
    bury(queue, *(b"d%05d" % n for n in range(3000)))
    assert rmq("requeue", "Orders", "--all").out == "Orders: 3,000 messages requeued\n"


def test_a_requeue_without_a_score_for_a_priority_topic_is_refused(rmq):
    queue = rmq.topic("Ranked", "Priority")
    bury(queue, b"d0")
    done = rmq("requeue", "Ranked", "--all")
    assert (done.code, "Add --priority" in done.err) == (2, True)
    assert queue.figures().dead.count == 1
    assert rmq("requeue", "Ranked", "--all", "--priority", "30").code == 0


def test_either_contents_or_all_must_be_given(rmq):
    rmq.topic()
    for arguments in ([], ["m", "--all"]):
        done = rmq("requeue", "Orders", *arguments)
        said = "Accepted: contents of messages (in a keyed topic, their keys), or --all."
        assert (done.code, said in done.err) == (2, True)


def test_a_purge_asks_and_deletes_what_waits(rmq):
    queue = rmq.topic()
    bury(queue, b"d0", b"d1")
    queue.send(["s0", "s1"], fixed_time=99)
    assert rmq("purge", "Orders", "--all").code == 2
    assert rmq("purge", "Orders", "d0", "--yes").out == "Orders: 1 message deleted\n"
    assert rmq("purge", "Orders", "--all", "--yes").code == 0
    assert rmq("purge", "Orders", "--queue", "store", "--all", "--yes").code == 0
    figures = queue.figures()
    assert (figures.dead.count, figures.store.count) == (0, 0)
    done = rmq("purge", "Orders", "--queue", "prepare", "--all", "--yes")
    assert (done.code, "Accepted: dead, store, retry" in done.err) == (2, True)


def test_expire_looks_once_for_what_is_to_be_forgotten(rmq, own_redis):
    with connect(own_redis.url, key_prefix=rmq.prefix) as broker:
        broker.create("Orders", "FixedTime", 4, dead_retention="1h")
        queue = broker.queue("Orders")
        queue.server.command("ZADD", queue.keys.dead(0), 1, "a")
        queue.expire()  # loads the scripts
        queue.server.command("ZADD", queue.keys.dead(0), 1, "b")
        queue.server.command("CONFIG", "RESETSTAT")
        told = rmq("expire", "Orders", "--json", url=own_redis.url).json
        assert told == {"topic": "Orders", "messages": 0, "forgotten": 1}
        calls = queue.server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls == 2 * 4  # of each slot: forget, expire


def test_expired_claims_are_given_back(rmq):
    queue = rmq.topic()
    queue.send(["m"], fixed_time=99)
    rmq.broker.consumer("Orders", "clerk", visibility_timeout="1ms").poll()
    assert rmq("expire", "Orders").out == "Orders: 1 message given back\n"


def test_what_is_dead_for_longer_than_the_topic_keeps_it_is_deleted(rmq):
    queue = rmq.topic(slots=1, max_retries=0, dead_retention="1ms")
    queue.send(["m0", "m1"], fixed_time=99)
    with rmq.broker.consumer("Orders", "clerk") as clerk:
        clerk.poll().rollback()
    died_ms = queue.figures().dead.oldest_ms
    while queue.now_ms() <= died_ms + 1:
        sleep(0.001)
    done = rmq("expire", "Orders")
    assert done.out == "Orders: 0 messages given back, 2 dead messages deleted\n"
    shown = rmq("show", "Orders", "--json").json["groups"][0]
    assert (shown["counters"]["dead"], shown["counters"]["forgotten"]) == (2, 2)
    assert shown["queues"][3]["messages"] == 0
    assert "forgotten" in rmq("show", "Orders").out
    told = rmq("expire", "Orders", "--json").json
    assert told == {"topic": "Orders", "messages": 0, "forgotten": 0}


def test_dead_messages_tell_when_why_and_whose_they_died(rmq):
    queue = rmq.topic(slots=1, max_retries=0)
    queue.send(["m0", "m1", "m2"], fixed_time=99)
    with rmq.broker.consumer("Orders", "clerk") as clerk:
        batch = clerk.poll()
        first, second, third = batch
        batch.rollback([first], reason=ValueError("no customer\n of that name"))
        batch.rollback([second], reason="closed")
        batch.rollback([third])
    shown = rmq("dead", "Orders").out.splitlines()
    assert shown[0].split() == ["slot", "content", "died", "by", "reason"]
    words = [line.split(maxsplit=4) for line in shown[1:]]
    assert [(word[0], word[1], *word[3:]) for word in words] == [
        ("0", "m0", "clerk", "ValueError: no customer of that name"),
        ("0", "m1", "clerk", "closed"),
        ("0", "m2", "clerk"),
    ]
    told = rmq("dead", "Orders", "--json", "-n", "1").json
    assert told == rmq("peek", "Orders", "--queue", "dead", "--json", "-n", "1").json
    assert (told["consumer"], told["reason"]) == ("clerk", "ValueError: no customer of that name")
    assert rmq("requeue", "Orders", "--all").code == 0
    assert rmq("dead", "Orders").code == 3


def test_a_user_without_scan_is_told_what_expire_has_not_looked_for(rmq):
    """Failed before: it was told to look for the command in docs/security.md.

    It gives back what it can; claims without a record are found only among all keys.
    """
    rmq.topic()
    rules = ["on", ">secret", "~*", "&*", "+@all", "-scan"]
    rmq.broker.server.client.execute_command("ACL", "SETUSER", "without-scan", *rules)
    url = rmq.url.replace("redis://", "redis://without-scan:secret@")
    done = rmq("expire", "Orders", url=url)
    assert (done.code, done.out) == (0, "Orders: 0 messages given back\n")
    assert done.err == (
        "rmq did not look for claims whose record was deleted by hand: this user may not run SCAN. "
        f"To permit it: redis-cli -u {rmq.url} --user ADMINISTRATOR --askpass ACL SETUSER "
        "without-scan +scan  # then ACL SAVE, or the same in redis.conf, for its next start\n"
    )


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_output_into_a_closed_pipe_ends_quietly(rmq, form):
    rmq.topic(slots=1).send([f"m{n}" * 50 for n in range(3000)], fixed_time=99)
    command = [*rmq.command(), "peek", "Orders", "-n", "3000", *form]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
        process.wait(timeout=60)
    assert errors == ""
    assert process.returncode == 1


def test_a_purge_of_one_queue_leaves_the_others(rmq):
    queue = rmq.topic(slots=1)
    queue.send(["m"], fixed_time=99)
    queue.server.client.zadd(queue.keys.retry(0), {"r": 5_004})
    assert rmq("purge", "Orders", "m", "--queue", "retry", "--yes").code == 3
    assert rmq("purge", "Orders", "--all", "--queue", "store", "--yes").code == 0
    figures = queue.figures()
    assert (figures.store.count, figures.retry.count) == (0, 1)


def test_what_dies_again_while_it_is_brought_back_is_brought_back_once(rmq):
    queue = rmq.topic(slots=1)
    bury(queue, b"old")
    queue.server.client.zadd(queue.keys.dead(0), {b"dies later": queue.now_ms() + 3_600_000})
    assert rmq("requeue", "Orders", "--all").out == "Orders: 1 message requeued\n"
    assert queue.figures().dead.count == 1


def test_contents_that_are_no_text_are_named_as_the_shell_has_them(rmq):
    queue = rmq.topic(slots=1)
    queue.send([b"\xff\xfe"], fixed_time=99)
    assert rmq("cancel", "Orders", b"\xff\xfe").code == 0
    bury(queue, b"\xff")
    assert rmq("requeue", "Orders", b"\xff").code == 0
    assert rmq("send", "Orders", b"\xfe", "--fixed-time", "0").code == 0


def test_a_terminal_without_unicode_gets_escapes_and_json_that_can_be_read(rmq):
    rmq.topic(slots=1).send(["snow ☃ 😀"], fixed_time=99)
    plain = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    assert rmq.begin("peek", "Orders", "--json", **plain).lines[0]["content"] == "snow ☃ 😀"
    shown = rmq.begin("peek", "Orders", **plain)
    assert (shown.code, "snow \\u2603" in shown.out) == (0, True)


def test_a_line_in_a_pipe_is_a_message_however_long(rmq):
    rmq.topic(slots=1).send(["x" * 25_000, "y"], fixed_time=99)
    lines = rmq("peek", "Orders").out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 400
    assert "xxx... (25,000 bytes)" in lines[1]
    assert len(rmq("peek", "Orders", "--json").lines[0]["content"]) == 25_000


def test_slots_that_a_topic_has_not_are_refused(rmq):
    rmq.topic(slots=1)
    done = rmq("peek", "Orders", "--slots", "7")
    assert (done.code, "Accepted: 0 to 0" in done.err) == (2, True)


def test_an_error_amid_a_long_input_says_what_was_sent(rmq):
    """Failed before: nothing was said of the messages that had been sent."""
    queue = rmq.topic(slots=1, max_messages=12_500)
    lines = "\n".join(map(str, range(15_000)))
    full = rmq("send", "Orders", "--fixed-time", "0", stdin=lines)
    sent = queue.figures().store.count
    assert 10_000 < sent <= 12_500
    assert (full.code, f" Before that, {sent:,} messages had been sent." in full.err) == (1, True)
    rmq.topic("Keyed", keyed=True)
    words = ("send", "Keyed", "--key-delimiter", "=", "--fixed-time", "0")
    refused = rmq(*words, stdin="\n".join([*(f"{number}=" for number in range(10_001)), "=x"]))
    assert "Message 10002 ('=x'): the key before --key-delimiter is 0 bytes long." in refused.err
    assert refused.err.endswith(" Before that, 10,000 messages had been sent.\n")
    assert rmq(*words, stdin="=x").err.endswith(" Nothing was sent.\n")


def test_a_redis_that_gets_full_amid_an_input_leaves_open_what_was_sent(rmq, own_redis):
    with connect(own_redis.url, key_prefix=rmq.prefix) as broker:
        broker.create("Orders", "FixedTime", 1)
        used = broker.server.client.info("memory")["used_memory"]
        broker.server.client.config_set("maxmemory", used + 2_500_000)
        lines = "\n".join(f"{number:0200}" for number in range(15_000))
        done = rmq("send", "Orders", "--fixed-time", "0", stdin=lines, url=own_redis.url)
        sent = broker.queue("Orders").figures().store.count
        broker.server.client.config_set("maxmemory", 1)
        begun = rmq("send", "Orders", "--fixed-time", "0", stdin="a\nb", url=own_redis.url)
    first = 1 if sent < 10_000 else 10_001
    last = 10_000 if sent < 10_000 else 15_000
    rest = ", and all before them were." if sent >= 10_000 else "."
    assert done.code == begun.code == 1
    assert f"Of messages {first:,} to {last:,}, some may have been sent{rest}" in done.err
    assert "Of messages 1 to 2, some may have been sent. Those" in begun.err


def test_find_says_where_a_message_is_and_move_changes_when_it_is_due(rmq):
    queue = rmq.topic("Orders")
    queue.send(["o1", "o2"], delay="1h")
    found = rmq("find", "Orders", "o1", "--json")
    assert (found.code, found.json["queue"], found.json["content"]) == (0, "store", "o1")
    moved = rmq("move", "Orders", "o1")
    assert (moved.code, moved.out) == (0, "Orders: 1 message moved\n")
    with rmq.broker.consumer("Orders", "clerk") as consumer:
        (message,) = consumer.poll()
        assert message.content == b"o1"
        assert "clerk" in rmq("find", "Orders", "o1").out
        # Failed before: cancel and purge did not say where to look.
        for words in (("move", "--delay", "5m"), ("cancel",), ("purge", "--yes")):
            refused = rmq(words[0], "Orders", "o1", *words[1:])
            assert (refused.code, "use rmq find" in refused.err) == (3, True)
    assert rmq("find", "Orders", "nowhere").code == 3


def test_a_move_of_priorities_needs_one(rmq):
    queue = rmq.topic("Alerts", "Priority")
    queue.send(["a"], priority=20)
    refused = rmq("move", "Alerts", "a")
    assert refused.code == 2
    assert "Add --priority" in refused.err
    assert "Nothing was moved." in refused.err
    moved = rmq("move", "Alerts", "a", "--priority", "99", "--json")
    assert moved.json == {"topic": "Alerts", "messages": 1, "group": "default"}
    assert rmq("find", "Alerts", "a", "--json").json["priority"] == 99


def test_a_terminal_too_narrow_for_a_table_shows_a_line_for_each_cell(rmq):
    """Failed before: headings were broken, and times."""
    queue = rmq.topic()
    queue.send(["a", "b"], fixed_time=99)
    narrow = on_a_terminal([*rmq.command(), "peek", "Orders"], 80).decode()
    assert narrow.count("1970-01-01T00:00:00.099Z") == 2
    cells = [line.split() for line in re.sub(r"\x1b\[\d*m", "", narrow).splitlines()]
    found = sorted(cell for cell in cells if "content" in cell)
    assert found == [["content", "a"], ["content", "b"]]
    wide = on_a_terminal([*rmq.command(), "peek", "Orders"], 200).decode()
    assert wide.count("content") == 1
    for command in ("topics", "show Orders"):
        shown = on_a_terminal([*rmq.command(), *command.split()], 60).decode()
        assert {"topics": "dead retention", "show Orders": "rolledBack"}[command] in shown


@pytest.mark.parametrize("command", [["purge", "Orders", "--yes"], ["requeue", "Orders"]])
def test_contents_are_repaired_only_where_the_other_options_select(rmq, command):
    """Failed before: --slots, --from and --until counted for nothing beside contents."""
    queue = rmq.topic()
    bury(queue, b"a", b"b")
    slot = queue.definition.slot_of(b"a")
    elsewhere = str((slot + 1) % 4)
    for options, remedy in (
        (["a", "--from", "1h"], "--slot-basis, or --slots"),
        (["a", "--until", "-1d"], "--slot-basis, or --slots"),
        (["a", "--reason", "KeyError"], "--slot-basis, or --slots"),
        (["a", "--slots", "0", "--slot-basis", "a"], "one of them"),
        (["--all", "--slot-basis", "a"], "--all: --slots"),
    ):
        done = rmq(*command, *options)
        assert (done.code, remedy in done.err) == (2, True)
    done = rmq(*command, "a", "--slots", elsewhere)
    assert (done.code, "holds none of them" in done.err) == (3, True)
    done = rmq(*command, "a", "nope", "--slots", f"0-{slot}")
    assert (done.code, "holds only 1 of the 2" in done.err) == (0, True)
    assert queue.figures().dead.count == 1


def test_dead_messages_are_shown_and_repaired_by_the_class_of_their_reasons(rmq):
    queue = rmq.topic()
    reasons = {b"a": "KeyError: 'x' (w.py:3)", b"b": "ValueError", b"c": "too late", b"d": None}
    for content, reason in reasons.items():
        queue.send([content], fixed_time=1)
        with rmq.broker.consumer("Orders", "a") as consumer:
            consumer.poll().rollback(reason=reason, bury=True)

    def left(*options):
        return [entry["content"] for entry in rmq("dead", "Orders", "--json", *options).lines]

    for of_class, content in zip(("KeyError", "ValueError", "other", "none"), "abcd", strict=True):
        assert left("--reason", of_class) == [content]
    missed = rmq("dead", "Orders", "--reason", "Key")
    assert (missed.code, missed.out) == (3, "Orders: no message matches\n")
    assert missed.err == (
        "No reason is of the class Key. There are reasons of: KeyError, ValueError, none, other.\n"
    )
    assert rmq("requeue", "Orders", "--all", "--reason", "Key").err == missed.err
    assert rmq("purge", "Orders", "--all", "--reason", "Key", "--yes").err == missed.err
    done = rmq("purge", "Orders", "--all", "--reason", "other", "--queue", "store", "--yes")
    assert (done.code, "--queue dead" in done.err) == (2, True)
    assert rmq("requeue", "Orders", "--all", "--reason", "KeyError").out == (
        "Orders: 1 message requeued\n"
    )
    assert rmq("purge", "Orders", "--all", "--reason", "other", "--yes").out == (
        "Orders: 1 message deleted\n"
    )
    assert sorted(left()) == ["b", "d"]
    assert list(due_times(queue)) == [b"a"]


def test_a_list_that_is_cut_says_so(rmq):
    """Failed before: a script took the first 20 for all."""
    queue = rmq.topic()
    queue.send(map(str, range(5)), fixed_time=99)
    bury(queue, *(b"dead %d" % number for number in range(5)))
    for command in ("peek", "dead"):
        done = rmq(command, "Orders", "--json", "--max", "4")
        assert (len(done.lines), "more than these 4" in done.err) == (4, True)
        done = rmq(command, "Orders", "--json", "--max", "5")
        assert (len(done.lines), done.err) == (5, "")


def test_find_names_what_it_has_not_found(rmq):
    rmq.topic().send(["a"], fixed_time=99)
    done = rmq("find", "Orders", "a", "nope")
    assert (done.code, done.err) == (0, "Not found: nope\n")
