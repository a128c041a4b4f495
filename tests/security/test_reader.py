"""The Redis user of docs/security.md who can only look."""

from urllib.parse import quote

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.errors import ServerRefused
from rmq_spark.inspect.prometheus import QueueCollector
from rmq_spark.protocol.pages import QueueKind

from .. import servers
from ..cli.forking import shared
from .credentials import PREFIX, SECRET, permit
from .documented import documented_commands
from .journey import Journey

LOOKS = [
    ["topics"],
    ["show", "FixedTime"],
    ["find", "FixedTime", "later"],
    ["find", "Priority", "held"],
    ["peek", "FixedTime", "--queue", "retry"],
    ["peek", "FixedTime", "--from", "2001-01-01T00:00:00Z"],
    ["dead", "FixedTime"],
    ["due", "FixedTime"],
    ["top", "-n", "1"],
]
CHANGES = [
    ["send", "FixedTime", "new", "--delay", "1m"],
    ["consume", "FixedTime"],
    ["cancel", "FixedTime", "later"],
    ["requeue", "FixedTime", "--all"],
    ["purge", "FixedTime", "--all", "--yes"],
    ["expire", "FixedTime"],
    ["pause", "FixedTime"],
    ["alter", "FixedTime", "--retries", "2"],
    ["create", "Another", "--type", "Priority"],
    ["delete", "FixedTime", "--yes"],
]


@pytest.fixture(scope="module")
def url(redis_executable):
    with servers.local(redis_executable) as own, connect(own.url, key_prefix=PREFIX) as broker:
        journey = Journey(broker)
        journey.make()
        journey.send()
        journey.consume()
        broker.queue("Priority").send(["held"], priority=20, headers={"a": "b"})
        with broker.consumer("Priority", "clerk") as clerk:
            assert len(clerk.poll()) == 3  # in flight, while the reader looks
            yield own.url


def told(url, words):
    """The exit code of a command, and what it told."""
    whose = url.replace("://", f"://rmq-reader:{quote(SECRET, safe='')}@")
    given = ["--redis-url", whose, "--key-prefix", PREFIX, *words]
    code, out, err = shared().run(given, b"", {})
    return code, (out + err).decode()


def contents_of(url):
    with redis.Redis.from_url(url) as admin:
        return {key: admin.dump(key) for key in admin.scan_iter()}


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_the_reader_can_look_at_everything(url, words):
    permit(url, "rmq-reader")
    code, text = told(url, words)
    assert code in (0, 3), text


def look(url):
    with connect(url, username="rmq-reader", password=SECRET, key_prefix=PREFIX) as broker:
        names = {metric.name for metric in QueueCollector(lambda: broker).collect()}
        queue = broker.queue("FixedTime")
        for kind in QueueKind:
            for slot in queue.slots:
                for page in queue.pages(kind, slot):
                    names |= set(page.contents)
    return names


def test_the_reader_sees_metrics_and_queues(url):
    permit(url, "rmq-reader")
    assert {"rmq_messages", b"later"} <= look(url)


@pytest.mark.parametrize("command", documented_commands("rmq-reader"))
def test_each_command_of_the_reader_is_needed(url, command):
    permit(url, "rmq-reader", without=command)
    codes = [told(url, words)[0] for words in LOOKS]
    assert not {*codes} <= {0, 3} or refused(url)


def refused(url):
    try:
        look(url)
    except ServerRefused:
        return True
    return False


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_the_reader_can_change_nothing(url, words):
    permit(url, "rmq-reader")
    before = contents_of(url)
    code, text = told(url, words)
    assert (code, "does not permit" in text) == (1, True), text
    assert contents_of(url) == before
