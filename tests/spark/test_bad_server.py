"""A server that is not there, refuses us or is unfit; and that no message shows a password."""

import os
import pickle
import re

import pytest
from pyspark.sql.types import StringType, StructType

from rmq_spark.errors import (
    InvalidOption,
    RmqError,
    ServerRefused,
    ServerUnavailable,
    ServerUnsuitable,
    WrongKeyType,
)
from rmq_spark.local.redis import LocalRedis
from rmq_spark.redis.server import Server
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.options import parse_sink_options, parse_source_options
from rmq_spark.spark.sink.writer import RmqWriter

from ..servers import NOBODYS_PORT
from .driving import DUE, Rmq, Run, chained_text, refused

CONTENT = StructType().add("content", StringType())
SECRET = "hunter2-of-the-tests"


def write(url: str, **options: str) -> None:
    given = {"redis.url": url, "topic": "T", "topicType": "FixedTime", "fixedTime": str(DUE)}
    RmqWriter(parse_sink_options({**given, **options}), CONTENT)


def read(url: str, **options: str) -> None:
    run = Run({"redis.url": url, "topic": "T", "visibilityTimeout": "1s", **options})
    run.plan(run.initial())


@pytest.fixture
def _no_patience(monkeypatch):
    monkeypatch.setattr(Server.__init__, "__defaults__", (0.1,))


@pytest.fixture(scope="module")
def locked():
    """A server that asks for a password."""
    with LocalRedis(settings={"requirepass": SECRET, "appendonly": "no"}) as server:
        yield server


@pytest.mark.usefixtures("_no_patience")
@pytest.mark.parametrize("use", [write, read])
def test_a_server_that_is_down_is_named_with_what_to_check(use):
    port = NOBODYS_PORT
    away, check = f"redis://127.0.0.1:{port}/0 cannot be reached", "redis.url or RMQ_REDIS_URL"
    with refused(ServerUnavailable, away, check) as _:
        use(f"redis://:{SECRET}@127.0.0.1:{port}/0", **{"redis.socketConnectTimeout": "200ms"})


@pytest.mark.parametrize("use", [write, read])
def test_a_wrong_password_is_refused_naming_the_options(use, locked):
    with refused(
        ServerRefused, "refused the user or password", "redis.username and redis.password"
    ):
        use(locked.url, **{"redis.password": "wrong"})


@pytest.mark.parametrize("use", [write, read])
def test_a_missing_password_is_refused_naming_the_option(use, locked):
    with refused(ServerRefused, "password"):
        use(locked.url)


def test_the_right_password_is_taken_from_option_or_address(locked):
    write(locked.url, **{"redis.password": SECRET})
    read(locked.url.replace("//", f"//:{SECRET}@"))


@pytest.mark.parametrize("use", [write, read])
def test_a_database_that_is_not_there_is_refused(use, redis_server):
    with refused(
        ServerRefused, "does not have this database", "Check the number at the end of redis.url"
    ):
        use(redis_server.url.removesuffix("/0") + "/99")


@pytest.mark.parametrize("url", ["http://x", "redis://h:notaport/0", "redis", "redis://h:99999"])
def test_an_address_that_is_none_is_refused_without_showing_it(url):
    with pytest.raises(
        InvalidOption, match=r"redis\.url is not accepted \(its value is not shown"
    ) as error:
        parse_source_options({"topic": "T", "redis.url": url.replace("//", f"//u:{SECRET}@")})
    assert SECRET not in chained_text(error.value)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_evicting_server_is_refused_with_what_to_set(policy):
    settings = {"maxmemory": "100mb", "maxmemory-policy": policy, "appendonly": "no"}
    with LocalRedis(settings=settings) as server:
        for use in (write, read):
            with refused(
                ServerUnsuitable, f"maxmemory-policy {policy}", "Set maxmemory-policy noev"
            ):
                use(server.url)


def test_a_key_of_another_type_is_named_and_left_alone_by_sender_and_reader(rmq):
    queue = rmq.due(1, slots=1)
    client, key = queue.server.client, queue.keys.retry(0)
    client.set(key, "mine")
    run = rmq.by_hand(queue)
    with refused(WrongKeyType, f"the key {key} holds a string", "Rename that key"):
        run.plan(run.initial())
    store = queue.keys.store(0)
    client.delete(store)
    client.set(store, "mine")
    with refused(WrongKeyType, f"the key {store} holds a string", "set another key prefix"):
        queue.send(["x"], fixed_time=DUE)
    assert client.get(key) == client.get(store) == b"mine"


def test_a_foreign_definition_of_a_topic_is_an_error_of_ours(rmq):
    name = rmq.name()
    rmq.broker.server.client.hset("rmq_topics", name, "{}")
    with pytest.raises(RmqError, match=re.escape(name)):
        read(rmq.url, topic=name)


def test_an_environment_variable_names_the_server_where_no_option_does(rmq, monkeypatch):
    queue = rmq.due(2)
    monkeypatch.setitem(os.environ, "RMQ_REDIS_URL", rmq.url)
    with Run({"topic": queue.definition.name}) as run:
        _, rows = run.next(run.initial())
    assert len(rows) == 2


# -- passwords


def test_no_repr_of_options_reader_writer_or_partition_shows_a_password(locked, tmp_path):
    given = {
        "redis.url": locked.url.replace("//", f"//default:{SECRET}@"),
        "redis.password": SECRET,
        "redis.sslPassword": SECRET,
    }
    sink = {**given, "topic": "T", "topicType": "FixedTime", "fixedTime": str(DUE)}
    del given["redis.sslPassword"], sink["redis.sslPassword"]
    writer = RmqWriter(parse_sink_options(sink), CONTENT)
    rmq = Rmq(given["redis.url"], "secret", tmp_path)
    queue = rmq.due(3)
    with Run({**given, "topic": queue.definition.name}) as run:
        start = run.initial()
        end = run.plan(start)
        partitions = run.partitions(start, end)
        assert len(run.read(partitions)) == 3
        shown = [
            *(run.reader, run.reader._options, run.reader._run, run.reader._server, partitions),
            *(writer, parse_sink_options(sink), RmqDataSource(given)),
            *(start, end, run.reader.reportLatestOffset(), rmq.broker, queue.server),
            *(vars(partitions[0]).values(), vars(writer).values()),
        ]
        assert not [thing for thing in shown if SECRET in f"{thing} {thing!r}"]
        assert SECRET.encode() not in pickle.dumps(partitions)
    rmq.close()


@pytest.mark.usefixtures("_no_patience")
@pytest.mark.parametrize("use", [write, read])
def test_no_error_of_a_server_shows_a_password_anywhere_in_its_chain(use, locked):
    urls = [
        f"redis://:{SECRET}@127.0.0.1:{NOBODYS_PORT}/0",  # nobody there
        locked.url.replace("//", f"//{SECRET}:{SECRET}@"),  # no such user
        locked.url.replace("//", f"//:{SECRET}x@"),  # wrong
        locked.url.replace("//", f"//:{SECRET}@").removesuffix("/0") + "/99",  # no such database
    ]
    for url in urls:
        with pytest.raises(RmqError) as error:
            use(url)
        assert SECRET not in chained_text(error.value)
    with pytest.raises(RmqError) as error:
        use(urls[1], **{"redis.password": SECRET, "visibilityTimeout": "1", "priority": "1"})
    assert SECRET not in chained_text(error.value)
