"""The Redis users of docs/security.md may do what they must, and nothing else."""

import itertools
import re
import threading
from functools import partial

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.client.receiving import waits
from rmq_spark.errors import RmqError, ServerRefused, UnknownTopic
from rmq_spark.protocol import claiming
from rmq_spark.protocol.calls import TopicQueues
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.protocol.scripts import scripts_for
from rmq_spark.redis import notifications, permissions
from rmq_spark.redis.permissions import commands_of
from rmq_spark.topics.keys import Keys

from .. import seeding, servers
from ..waiting import wait_until
from .credentials import PREFIX, SECRET, knows_selectors, permit
from .documented import documented_commands
from .journey import DUE, LEASE_MS, Journey

# Without these, who waits finds messages by looks: tests/client/test_waiting.py.
OPTIONAL = ("@pubsub", "ping")
# With these, a script looks how much waits before it writes.
BEFORE_WRITES = {"HLEN", "HRANDFIELD", "ZRANDMEMBER"}
COMMANDS = [each for each in documented_commands("rmq") if each not in OPTIONAL]
SENDER = [each for each in documented_commands("rmq-sender") if each not in OPTIONAL]
SCRIPTS = scripts_for(knows_flags=True)
_prefixes = (f"{PREFIX}{number}:" for number in itertools.count())


@pytest.fixture(scope="module")
def url(redis_executable):
    with servers.local(redis_executable) as own:
        yield own.url


@pytest.fixture
def enter(url):
    """Connects as a documented user, less one command, under a prefix of the test's own."""
    prefix = next(_prefixes)
    connected = []

    def as_user(user=None, without=""):
        login = {"username": user, "password": SECRET} if user else {}
        if user:
            permit(url, user, without=without, prefix=prefix)
        connected.append(connect(url, key_prefix=prefix, patience_s=2, **login))
        return connected[-1]

    yield as_user
    for broker in connected:
        broker.close()


def test_the_user_can_do_everything(enter):
    Journey(enter("rmq")).all()


def test_redis_refuses_the_user_only_what_the_page_calls_optional(url, enter):
    with redis.Redis.from_url(url, decode_responses=True) as admin:
        admin.execute_command("ACL", "LOG", "RESET")
        Journey(enter("rmq")).all()
        refused = {line["object"] for line in map(as_mapping, admin.execute_command("ACL", "LOG"))}
    assert refused <= {"config", "config|get", "client", "client|setinfo"}


def as_mapping(line):
    """A line of ACL LOG, which comes flat or as a mapping."""
    return line if isinstance(line, dict) else dict(zip(line[::2], line[1::2], strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_user_is_needed(enter, command):
    with pytest.raises(
        ServerRefused, match=rf"does not permit .*({command}|{command.upper()}|user)"
    ):
        Journey(enter("rmq", without=command)).all()


def test_the_lines_name_every_command_of_the_scripts():
    of_scripts = set().union(*(commands_of(script.text) for script in SCRIPTS.values()))
    assert {command.lower() for command in of_scripts} <= set(COMMANDS)
    assert set(SENDER) < set(COMMANDS)


def test_every_command_of_the_scripts_is_known():
    """Seen: nobody asked for HMGET, and a requeue without it lost its messages half-way."""
    for script in SCRIPTS.values():
        called = re.findall(r"redis\.call\(([^,)]+)", script.text)
        commands = set().union(*(re.findall("'([A-Z]+)'", each) for each in called))
        assert commands - commands_of(script.text) <= {"RPUSH", *BEFORE_WRITES}


def test_the_users_wake_each_other(enter, monkeypatch):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 3600.0)
    Journey(enter()).make()
    fixed = Journey(enter("rmq-sender")).queues()[0]
    with Journey(enter("rmq")).broker.consumer("FixedTime", "clerk") as clerk:
        assert len(clerk.poll(wait="10ms")) == 0
        wait_until(lambda: clerk._waiter._notifications.hears_all, "wake-ups")
        fixed.send(["m"], delay=500)
        assert [message.content for message in clerk.poll(wait="1h")] == [b"m"]


def test_a_user_who_waits_long_hears_all(enter, monkeypatch, caplog):
    """Seen: without +ping, a reader heard nothing after ten seconds, and believed that it did."""
    for name, seconds in (("_SILENCE_S", 0.2), ("_READ_S", 0.1)):
        monkeypatch.setattr(notifications, name, seconds)
    Journey(enter()).make()
    refused = "subscribe +ping, and & with"
    for without, hears in (("", True), ("ping", False)):
        with enter("rmq", without=without).consumer("FixedTime", "clerk") as clerk:
            clerk.poll(wait="10ms")
            heard = clerk._waiter._notifications
            wait_until(lambda of=heard: of.hears_all, "wake-ups")
            if hears:
                clerk.poll(wait="1s")  # it has asked Redis in between
            else:
                wait_until(lambda: refused in caplog.text, "what Redis refused")
            assert heard.hears_all is hears
            assert (refused in caplog.text) is not hears


def test_the_sender_can_send_to_topics_that_exist(enter):
    admin = Journey(enter())
    admin.make(max_bytes=None)
    Journey(enter("rmq-sender")).broker.definition("FixedTime")
    fixed, ranged, prior = Journey(enter("rmq-sender")).queues()
    assert fixed.send(["a", "b"], fixed_time=10**13, past_fixed_time="fail").new == 2
    for time in (2000, 1000, 0):  # each looks in another way since when messages are due
        assert fixed.send(["late"], fixed_time=time).merged == (time < 2000)
    assert ranged.send(["a", "a"], time_range=5).repeated == 1
    assert prior.send(["a"], priority=20).new == 1
    with admin.broker.consumer("Priority", "clerk") as clerk:
        clerk.poll().rollback(delay="1h")
    assert prior.send(["a"], priority=20).merged == 1  # out of the retry queue


def test_what_a_user_lacks_is_looked_up_for_each_script_once_and_under_no_lock(enter, monkeypatch):
    Journey(enter()).make()
    fixed, sent = Journey(enter("rmq-sender")).queues()[0], []
    fixed.send(["a"], fixed_time=1)
    monkeypatch.setattr(permissions, "_words_of", None)
    sends = threading.Thread(target=lambda: sent.append(fixed.send(["b"], fixed_time=1)))
    with fixed.server._loading:
        sends.start()
        sends.join(30)
        assert len(sent) == 1


def send_all(connected):
    fixed, ranged, prior = Journey(connected()).queues()
    ranged.send(["a"], time_range=5)
    fixed.send(["a"], fixed_time=10**13, past_fixed_time="fail")
    prior.send(["a"], priority=20)


@pytest.mark.parametrize("command", SENDER)
def test_each_command_of_the_sender_is_needed(enter, command):
    Journey(enter()).make(max_bytes=None)
    with pytest.raises(ServerRefused):
        send_all(lambda: enter("rmq-sender", without=command))


def test_a_deletion_that_is_refused_has_deleted_nothing(enter):
    """Failed before: the queues were empty by then, and the schedules gone."""
    admin, user = enter(), enter("rmq", without="hdel")
    admin.create("T", "FixedTime", 1, groups="default,g")
    admin.queue("T").send(["m"], fixed_time=DUE)
    for remove in (partial(user.remove_group, "T", "g", drop=True), partial(user.delete, "T")):
        with pytest.raises(ServerRefused):
            remove()
    assert [admin.queue("T", group=of).figures().messages for of in ("default", "g")] == [1, 1]


def test_a_sender_to_a_topic_with_a_limit_of_bytes_is_told_what_it_lacks(url, enter):
    """Failed before: the server did not name the command, and the error only the page."""
    enter().create("T", "FixedTime", 1, max_bytes="1gb")
    sender = enter("rmq-sender")
    with pytest.raises(ServerRefused) as raised:
        sender.queue("T").send(["m"], fixed_time=DUE)
    assert str(raised.value) == (
        f"Redis at {sender.server.address} does not permit this user HLEN, HRANDFIELD, "
        "ZRANDMEMBER, which the script send_at needs. Grant it +hlen +hrandfield +zrandmember "
        "(docs/security.md)."
    )
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", "rmq-sender", *str(raised.value).split()[-4:-1])
    assert sender.queue("T").send(["m"], fixed_time=DUE).new == 1


def test_a_sender_who_creates_topics_needs_another_command(url, enter):
    sender = enter("rmq-sender")
    with redis.Redis.from_url(url) as admin:
        with pytest.raises(ServerRefused, match="hsetnx"):
            sender.create("T", "FixedTime")
        admin.execute_command("ACL", "SETUSER", "rmq-sender", "+hsetnx")
    sender.create("T", "FixedTime")
    assert sender.queue("T").send(["m"], fixed_time=DUE).new == 1


def test_a_sender_is_told_of_a_topic_that_is_not_there(enter):
    """Failed before: it was told that it may not run HKEYS, which looks for similar names."""
    with pytest.raises(UnknownTopic, match="The topic Nope does not exist on"):
        enter("rmq-sender").queue("Nope")


def test_the_sender_can_neither_take_nor_read_nor_create(enter):
    admin = Journey(enter())
    admin.make()
    admin.send()
    sender = enter("rmq-sender")
    queue = sender.queue("FixedTime")
    asked = {"consumer": "c", "run": 1, "seq": 1, "lease_ms": LEASE_MS}
    refused = [
        lambda: sender.consumer("FixedTime", "c").poll(),
        lambda: queue.ask(claiming.claim, [ClaimRequest(0, 0, 1)], claiming.Claiming(**asked)),
        lambda: queue.ask(claiming.commit, [0], "c", 1, 1),
        lambda: queue.figures(),
        lambda: sender.create("Another", "Priority"),
        lambda: sender.server.command("ZRANGE", queue.keys.store(0), 0, -1),
    ]
    if knows_selectors(admin.broker.server.client):
        refused += [
            lambda: sender.delete("FixedTime"),
            lambda: sender.alter("FixedTime", paused=True),
            lambda: queue.ask(claiming.pause, None),
        ]
    before = admin.broker.queue("FixedTime").figures()
    for call in refused:
        with pytest.raises(ServerRefused):
            call()
    after = admin.broker.queue("FixedTime").figures()
    assert (after.store.count, after.prepare.count) == (before.store.count, 0)


@pytest.mark.parametrize("user", ["rmq", "rmq-sender"])
def test_keys_outside_the_prefix_are_refused(url, enter, user):
    admin = enter()
    admin.create("T", "FixedTime", 1)
    permit(url, user)
    outside = connect(url, username=user, password=SECRET, key_prefix="other:", patience_s=2)
    inside = connect(url, username=user, password=SECRET, key_prefix=admin.key_prefix)
    queue = inside.queue("T")
    queue.queues = TopicQueues(queue.definition, Keys("T", "other:"))
    refused = [
        lambda: outside.create("T", "FixedTime", 1),
        lambda: outside.find("T"),
        lambda: queue.send(["m"], fixed_time=DUE),
        lambda: inside.server.command("HGET", "other:rmq_topics", "T"),
        lambda: inside.server.command("GET", f"{PREFIX}x"),
        lambda: inside.server.command("CONFIG", "GET", "requirepass"),
        lambda: inside.server.command("ACL", "LIST"),
        lambda: inside.server.command("FLUSHALL"),
        lambda: inside.server.command("PUBLISH", "other:x", "m"),
    ]
    for call in refused:
        with pytest.raises(ServerRefused, match="does not permit"):
            call()
    for broker in (outside, inside):
        broker.close()
    with redis.Redis.from_url(url) as client:
        assert client.keys("other:*") == []


# -- a user who lacks a command


def filled(broker, name):
    """A topic of which five of ten messages are claimed."""
    broker.create(name, "FixedTime", 1, max_retries=2)
    queue = broker.queue(name)
    queue.send([f"m{number}" for number in range(10)], fixed_time=DUE)
    asked = {"consumer": "c", "run": 1, "seq": 1, "lease_ms": LEASE_MS}
    queue.ask(claiming.claim, [ClaimRequest(0, 0, 5)], claiming.Claiming(**asked))
    return queue


def claim(queue):
    asked = {"consumer": "d", "run": 1, "seq": 1, "lease_ms": LEASE_MS}
    queue.ask(claiming.claim, [ClaimRequest(0, 0, 5)], claiming.Claiming(**asked))


def rollback(queue):
    seeding.rollback(queue, 0, "c:1:0:1", [b"m0", b"m1"])


def commit(queue):
    queue.ask(claiming.commit, [0], "c", 1, 1)


@pytest.mark.parametrize("call", [claim, rollback, commit], ids=lambda call: call.__name__)
def test_a_script_that_would_be_stopped_half_way_is_not_begun(enter, call):
    """Seen: a user without ZADD lost every message that it claimed or rolled back."""
    admin = enter()
    wanted = sorted(commands_of(SCRIPTS[call.__name__].text))
    assert wanted
    for command in wanted:
        queue = filled(admin, command)
        before = queue.figures()
        with pytest.raises(
            RmqError, match=f"does not permit this user.*{command.lower()}|{command}"
        ):
            call(enter("rmq", without=command.lower()).queue(command))
        assert queue.figures() == before


@pytest.mark.parametrize(
    "denied",
    ["User rmq has no permissions to run the 'rpush' command", "No permissions to access a key"],
)
def test_a_denial_in_a_script_is_a_refusal_in_the_words_of_later_servers_too(enter, denied):
    """Seen: on Redis 8 and Valkey 8 a denial was a ScriptFailed. All of theirs begin like this."""
    answer = ("EVAL", "return redis.error_reply(ARGV[1])", 1, "k")
    with pytest.raises(ServerRefused, match=f"does not permit this user.*{denied}.*security.md"):
        enter().server.command(*answer, f"ERR ACL failure in script: {denied}")


def test_a_user_who_is_given_what_was_missing_goes_on(url, enter):
    queue = filled(enter(), "T")
    poor = enter("rmq", without="zadd").queue("T")
    with pytest.raises(
        ServerRefused, match="ZADD, without which the script claim would stop half-way"
    ):
        claim(poor)
    permit(url, "rmq")
    poor.server.client.connection_pool.disconnect()  # ACL SETUSER reset has ended its connection
    claim(poor)
    assert queue.figures().prepare.count == 10


def test_what_is_asked_of_a_user_changes_nothing(url, enter):
    queue = filled(enter(), "T")
    with redis.Redis.from_url(url) as client:

        def keys():
            return {key: client.dump(key) for key in client.scan_iter()}

        before = keys()
        enter("rmq").queue("T").figures()
        assert keys() == before
    assert queue.figures().store.count == 5
