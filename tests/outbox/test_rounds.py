"""Rounds: what is sent, what waits, what is refused; and who is killed where."""

import threading
import time
from contextlib import closing, suppress
from string import ascii_lowercase

import pytest

from rmq_spark.client import Broker, Message
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.errors import (
    InvalidOption,
    OutboxMisused,
    OutboxUnavailable,
    ServerFull,
    ServerUnavailable,
    TopicFull,
    UnknownTopic,
)
from rmq_spark.local.redis import LocalRedis
from rmq_spark.outbox import Outbox, Relayed
from rmq_spark.outbox.rounds import Rounds
from rmq_spark.protocol import staging
from rmq_spark.sql import database as database_module
from rmq_spark.sql.postgresql import PostgreSql
from rmq_spark.topics.keys import sink_key

from .. import postgres
from ..rounds.proxy import Proxy
from ..waiting import wait_until
from .shop import Shop, soon

OF_KEYS = "message_key, content, fixed_time"


def test_what_is_due_within_the_horizon_is_sent_and_marked(shop):
    shop.insert(f"('soon', {soon(9)}), ('later', {soon(11)}), ('long ago', {soon(-1440)})")
    assert shop.relay().sent == 2
    assert shop.contents() == ["long ago", "soon"]
    assert shop.states() == {"sent": 2, "new": 1}
    assert shop.one("SELECT count(*) FROM {t} WHERE sent_at IS NOT NULL") == "2"
    assert shop.relay(horizon="12m").sent == 1


def test_an_outbox_may_rest_for_long(shop):
    """Failed before: after 30 days Redis had forgotten its rounds, and the next one that was
    interrupted stayed open for good.
    """
    shop.insert(f"('x', {soon(0)})")
    shop.relay()
    sink = sink_key(shop.one("SELECT name FROM {t}_relay"), shop.broker.key_prefix)
    assert shop.broker.server.client.pttl(sink) == -1


def test_a_time_keeps_its_zone_and_its_ms(shop):
    zoned = "'2020-02-02 12:00:00.5+05:30'"
    if not shop.is_postgresql:
        zoned = "CONVERT_TZ('2020-02-02 06:30:00.5', '+00:00', @@session.time_zone)"
    shop.insert(f"('x', {zoned})")
    shop.relay()
    assert [entry.due_time_ms for entry in shop.entries()] == [1580625000500]


def test_times_may_be_whole_numbers_and_columns_may_be_missing(empty_shop):
    shop = empty_shop
    shop.broker.create("Orders", "FixedTime", slot_amount=4)
    shop.sql(
        "CREATE TABLE {t} (id INT PRIMARY KEY, content TEXT, fixed_time BIGINT, "
        f"state VARCHAR(10)){shop.database.table_options};"
        "INSERT INTO {t} VALUES (1, 'due', 17, 'new'), (2, 'in 2286', 9999999999999, 'new')"
    )
    assert shop.relay().sent == 1
    assert shop.contents() == ["due"]


def test_messages_of_all_types_go_to_the_topic_of_their_row(shop):
    shop.broker.create("Mails", "RangeMerge", slot_amount=1)
    shop.broker.create("Jobs", "Priority", slot_amount=1)
    shop.insert(
        "('Mails', 'm', 'k', 1000, NULL), ('Jobs', 'p', NULL, NULL, 99)",
        "topic, content, slot_basis, time_range, priority",
    )
    assert shop.relay(topic=None).sent == 2
    assert shop.contents("Mails") == ["m"]
    assert shop.contents("Jobs") == ["p"]


def test_a_message_with_a_delay_is_sent_at_once_and_due_later(shop):
    shop.insert(
        f"('at once', 0, NULL), ('later', 3600000, NULL), ('both', 7, {soon(0)})",
        "content, delay, fixed_time",
    )
    assert shop.relay() == Relayed(sent=2, refused=1)
    assert "delay is 7" in shop.refusals()["both"]
    store = shop.broker.queue("Orders").figures().store
    assert (store.count, store.due) == (2, 1)


def test_values_that_messages_lack_are_supplied(shop):
    shop.insert("('x', NULL)")
    assert shop.relay(defaults=Message(fixed_time=17)).sent == 1
    assert [entry.due_time_ms for entry in shop.entries()] == [17]


def test_what_a_topic_refuses_goes_to_the_exceptions_and_holds_nobody_up(shop):
    shop.broker.create("Jobs", "Priority", slot_amount=1)
    shop.insert(
        "('Jobs', 'too low', 3, NULL), ('No/Such', 'no name', 99, NULL), "
        "('NoSuch', 'no topic', 99, NULL), (NULL, 'no time', NULL, NULL), "
        f"('Jobs', 'good', 99, NULL), (NULL, 'due', NULL, {soon(0)})",
        "topic, content, priority, fixed_time",
    )
    assert shop.relay() == Relayed(sent=2, refused=4)
    assert shop.states() == {"sent": 2, "refused": 4}
    rows = shop.sql("SELECT origin, topic, content, reason FROM {t}_exceptions ORDER BY origin")
    assert [row[:3] for row in rows] == [
        [f"{shop.table} id 1", "Jobs", "too low"],
        [f"{shop.table} id 2", "No/Such", "no name"],
        [f"{shop.table} id 3", "NoSuch", "no topic"],
        [f"{shop.table} id 4", "Orders", "no time"],
    ]
    assert "priority is 3. Accepted for a Priority topic: a whole number, 17 to" in rows[0][3]
    assert all("was sent" not in row[3] for row in rows)
    shop.sql("UPDATE {t} SET state = 'new', priority = 17 WHERE content = 'too low'")  # the mend
    assert shop.relay().sent == 1


def test_keys_headers_and_expiry_are_sent(shop):
    shop.broker.create("Keyed", "FixedTime", slot_amount=1, keyed=True)
    shop.insert(
        """('Keyed', 'a', 'paid', 0, '{"source": "web", "none": null}', 3600000), """
        """('Keyed', 'b', NULL, 0, '[{"key": "id", "valueBase64": "/w=="}]', NULL), """
        """('Orders', NULL, 'm', 0, '[]', NULL), """
        """('Orders', NULL, 'n', 0, 'null', NULL)""",  # SQLAlchemy's None in a column of JSON
        "topic, message_key, content, delay, headers, time_to_live",
    )
    assert shop.relay().sent == 4
    a, b = shop.entries("Keyed")
    assert (a.key, a.content, a.expires_at_ms) == (b"a", b"paid", a.due_time_ms + 3_600_000)
    assert a.headers == (("source", b"web"), ("none", None))
    assert (b.key, b.content, b.headers) == (b"b", None, (("id", b"\xff"),))


def test_what_is_wrong_with_keys_headers_and_expiry_stands_in_the_exceptions(shop):
    shop.broker.create("Keyed", "FixedTime", slot_amount=1, keyed=True)
    shop.insert(
        "('Keyed', NULL, '1', 0, NULL, NULL), ('Keyed', '', '2', 0, NULL, NULL), "
        "('Keyed', 'a', '3', 0, '{\"n\": 1}', NULL), ('Keyed', 'a', '4', 0, 'web', NULL), "
        "('Keyed', 'a', '5', 0, '[{\"value\": \"web\"}]', NULL), "
        "('Keyed', 'a', '6', 0, NULL, 0), ('Orders', 'a', '7', 0, NULL, NULL)",
        "topic, message_key, content, delay, headers, time_to_live",
    )
    assert shop.relay().refused == 7
    found = shop.refusals()
    for content, said in {
        "1": "key is None. Accepted in a keyed topic: bytes or str",
        "2": "key is 0 bytes long. Accepted in a keyed topic",
        "3": """headers is '{"n": 1}'. Accepted: null, a JSON object of texts such as""",
        "4": "headers is 'web'. Accepted: null, a JSON object",
        "5": """headers is '[{"value": "web"}]'. Accepted: null, a JSON object""",
        "6": "time_to_live is 0. Accepted: whole milliseconds, 1 to",
        "7": "key is 'a', but the topic is not keyed",
    }.items():
        assert said in found[content], found[content]


def test_what_is_due_before_the_last_that_was_sent_is_sent(shop):
    shop.insert(f"('first', {soon(9)})")
    shop.relay()
    shop.insert(f"('earlier', {soon(5)})")
    assert shop.relay() == Relayed(sent=1)


def test_a_clock_of_the_relay_that_is_an_hour_behind_delays_nothing(shop, monkeypatch):
    """Failed before: the message was sent when the relay's own clock reached its time."""
    shop.insert(f"('due', {soon(0)})")
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() - 3600)
    shop.relay()
    assert shop.contents() == ["due"]


def test_one_that_commits_after_later_ones_were_sent_is_not_skipped(shop):
    slow = shop.connect()
    shop.outbox().send(slow, [Message("slow", fixed_time=0)])
    shop.insert("('fast', NULL)")
    shop.relay(defaults=Message(fixed_time=0))
    assert shop.contents() == ["fast"]
    slow.commit()
    slow.close()
    shop.relay()
    assert shop.contents() == ["fast", "slow"]


def test_rounds_of_a_limit_send_the_earliest_first(shop, monkeypatch):
    shop.insert(", ".join(f"('order {n:02}', {soon(-n)})" for n in range(1, 26)))
    shop.insert("('no time', NULL)")
    sizes = []
    finish = Rounds._finish

    def noted(self, number, sent):
        sizes.append((number, sent))
        return finish(self, number, sent)

    monkeypatch.setattr(Rounds, "_finish", noted)
    assert shop.relay(limit=10) == Relayed(sent=25, refused=1)
    assert sizes == [(1, 9), (2, 10), (3, 6)]
    assert shop.sql("SELECT rounds, done, sent, refused FROM {t}_relay") == [["3", "3", "25", "1"]]


class Killed(BaseException):
    """Stands for a kill at that moment."""


def killed(*_):
    raise Killed


def test_rows_without_a_time_do_not_starve_those_with_one(shop, monkeypatch):
    """Failed before: as long as there were enough of the former, the latter were not sent."""
    shop.insert(", ".join(f"('order {n:02}', NULL)" for n in range(35)))
    shop.insert(f"('timed', {soon(-1)})")
    finish = Rounds._finish

    def until_round_3(self, number, *more):
        return killed() if number == 3 else finish(self, number, *more)

    monkeypatch.setattr(Rounds, "_finish", until_round_3)
    with pytest.raises(Killed):
        shop.relay(limit=10, defaults=Message(fixed_time=0))
    assert len(shop.contents()) == 30
    assert "timed" in shop.contents()


MOMENTS = [
    (Rounds, "_send", "new"),  # the round has begun
    (StagedSink, "publish", "new"),  # all is staged
    (StagedSink, "_publish", "sealed"),
    (StagedSink, "_sweep", "sealed"),  # published, and not concluded
    (Rounds, "_finish", "sealed"),  # published and concluded
]


@pytest.mark.parametrize(("of", "method", "found"), MOMENTS)
def test_a_relay_that_is_killed_at_any_moment_sends_nothing_twice(
    shop, monkeypatch, of, method, found
):
    shop.insert(f"('a', {soon(-1)}), ('b', {soon(-1)}), ('refused', NULL)")

    with monkeypatch.context() as patched:
        patched.setattr(of, method, killed)
        with pytest.raises(Killed):
            shop.relay()
    consumed = shop.consume()  # what was sent is gone
    assert set(shop.states()) - {"refused"} == {"sending"}
    shop.insert(f"('c', {soon(-1)})")
    shop.broker.create("Late", "FixedTime", slot_amount=1)
    shop.relay()
    assert sorted(consumed + shop.consume()) == ["a", "b", "c"]
    assert shop.states() == {"sent": 3, "refused": 1}
    assert list(shop.refusals()) == ["refused"]
    assert bool(consumed) == (method in ("_sweep", "_finish"))


def test_a_round_that_is_sealed_is_not_judged_anew(shop, monkeypatch):
    """Else a message of a topic that is deleted since would count as refused, and was sent."""
    shop.insert(f"('Orders', 'a', {soon(-1)})", "topic, content, fixed_time")

    with monkeypatch.context() as patched:
        patched.setattr(Rounds, "_finish", killed)
        with pytest.raises(Killed):
            shop.relay(topic=None)
    assert shop.consume() == ["a"]
    shop.broker.delete("Orders")
    assert shop.relay(topic=None) == Relayed(sent=1)
    assert shop.states() == {"sent": 1}


def test_a_relay_whose_own_topic_has_gone_ends_and_refuses_nothing(shop):
    """Failed before: after a loss of Redis, all messages that waited were refused."""
    shop.insert(f"('a', {soon(-1)}), ('b', {soon(-1)})")
    relay = shop.outbox().relay(shop.broker, topic="Orders")
    shop.broker.delete("Orders")
    with pytest.raises(UnknownTopic, match="Orders"):
        relay.run_once()
    assert shop.refusals() == {}
    shop.broker.create("Orders", "FixedTime", slot_amount=1)
    assert shop.relay() == Relayed(sent=2)


def test_a_relay_whose_redis_has_lost_all_opens_no_round(shop):
    """Failed before: its messages could not be sent until somebody had changed the tables."""
    shop.insert(f"('a', {soon(-1)})")
    relay = shop.outbox().relay(shop.broker, topic="Orders")
    assert relay.run_once() == Relayed(sent=1)
    server = shop.broker.server
    server.command("DEL", *server.keys_like(f"{shop.prefix}*"))
    shop.insert(f"('b', {soon(-1)})")
    with pytest.raises(UnknownTopic, match="Orders"):
        relay.run_once()
    assert shop.states() == {"sent": 1, "new": 1}
    shop.broker.create("Orders", "FixedTime", slot_amount=1)
    assert shop.relay().sent == 1
    assert shop.contents() == ["b"]


def test_an_error_of_redis_leaves_the_round_open(shop, monkeypatch):
    shop.insert(f"('a', {soon(-1)})")

    def failed(*_):
        raise ServerUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(StagedSink, "publish", failed)
        with pytest.raises(ServerUnavailable):
            shop.relay()
    assert shop.relay().sent == 1
    assert shop.contents() == ["a"]


def stages(shop):
    """How many messages are staged, by stage."""
    queue = shop.broker.queue("Orders")
    return [stage for of_slot in queue.ask(staging.begun, queue.slots) for stage in of_slot]


def test_a_round_that_does_not_fit_into_redis_leaves_nothing_there(database):
    settings = {"appendonly": "no", "maxmemory": "20mb"}
    with LocalRedis(settings=settings) as full, closing(Shop(database, full.url)) as shop:
        shop.broker.create("Orders", "FixedTime", slot_amount=4)
        shop.outbox().create_tables()
        for letter in ascii_lowercase:
            shop.insert(f"(repeat('{letter}', 1000000), {soon(-1)})")
        for _ in range(2):
            with pytest.raises(ServerFull):
                shop.relay()
            assert stages(shop) == []
        shop.broker.server.command("CONFIG", "SET", "maxmemory", "0")
        assert shop.relay().sent == 26


def test_relays_that_are_killed_do_not_pile_up_stages(shop, monkeypatch):
    shop.insert(f"('a', {soon(-1)}), ('b', {soon(-1)})")
    with monkeypatch.context() as patched:
        patched.setattr(StagedSink, "publish", killed)
        for _ in range(3):
            with pytest.raises(Killed):
                shop.relay()
            assert 1 <= len(set(stages(shop))) == 1
    assert shop.relay().sent == 2


@pytest.fixture
def keyed(shop):
    shop.broker.create("Keyed", "FixedTime", slot_amount=1, keyed=True)
    return shop


def payloads(shop):
    return {entry.key: entry.content for entry in shop.entries("Keyed")}


def test_of_a_key_the_last_row_counts_though_it_is_due_first(keyed):
    keyed.insert(f"('k', 'old', {soon(5)}), ('k', 'new', {soon(1)})", OF_KEYS)
    assert keyed.relay(topic="Keyed").sent == 2
    assert payloads(keyed) == {b"k": b"new"}


def test_of_a_key_the_last_row_counts_though_it_has_no_time(keyed):
    keyed.insert(f"('k', 'old', {soon(5)}, NULL), ('k', 'new', NULL, 60000)", f"{OF_KEYS}, delay")
    assert keyed.relay(topic="Keyed").sent == 2
    assert payloads(keyed) == {b"k": b"new"}


def test_of_a_key_the_last_row_counts_in_a_round_that_is_taken_up(keyed, monkeypatch):
    keyed.insert(f"('k', 'old', {soon(5)}), ('k', 'new', {soon(1)})", OF_KEYS)
    with monkeypatch.context() as patched:
        patched.setattr(StagedSink, "publish", killed)
        with pytest.raises(Killed):
            keyed.relay(topic="Keyed")
    keyed.sql("UPDATE {t} SET topic = 'Keyed' WHERE content = 'old'")  # elsewhere in the table now
    assert keyed.relay(topic="Keyed").sent == 2
    assert payloads(keyed) == {b"k": b"new"}


def test_the_server_gives_up_a_relay_that_has_vanished(shop):
    database = shop.outbox()._database
    asked, known = "SELECT @@SESSION.wait_timeout", [(300 + 600,)]
    if shop.is_postgresql:
        names = ("idle", "interval", "count")
        settings = ", ".join(f"current_setting('tcp_keepalives_{name}')" for name in names)
        asked, known = f"SELECT {settings}", [("30", "10", "3")]
    with closing(database.connect()) as connection:
        relay = shop.outbox().relay(shop.broker, topic="Orders", interval="10m")
        assert relay._locks(connection, "any")
        assert [tuple(row) for row in connection.query(asked)] == known


@pytest.fixture
def far(postgresql_server, redis_of_outbox, monkeypatch):
    """A shop, a proxy in front of its database, an outbox behind the proxy, and what ends sessions.

    A database that does not answer is given up after a second.
    """
    monkeypatch.setattr(database_module, "ANSWER_S", 1.0)
    shop, proxy = Shop(postgresql_server, redis_of_outbox.url), Proxy(postgresql_server.port)
    shop.broker.create("Orders", "FixedTime", slot_amount=4)
    shop.outbox().create_tables()
    far = Outbox(
        f"postgresql://127.0.0.1:{proxy.port}/postgres",
        **{"user": postgres.USER, "password": postgres.PASSWORD, "table": shop.table},
    )

    def end_sessions():
        shop.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    with closing(shop), closing(proxy):
        yield shop, proxy, far, end_sessions


def test_a_relay_gives_up_a_database_that_is_gone_behind_a_proxy(far):
    """Failed before: it waited for ever for an answer on a connection that nobody closed."""
    shop, proxy, outbox, end_sessions = far
    with outbox.relay(shop.broker, topic="Orders"):
        shop.insert("('a', CURRENT_TIMESTAMP)")
        shop.arrives("a")
        proxy.hush()
        end_sessions()
        shop.insert("('b', CURRENT_TIMESTAMP)")
        shop.arrives("b")


def test_a_relay_gives_up_a_database_that_falls_silent_while_it_begins_to_listen(far, monkeypatch):
    """Failed before: of its connections, only that of the rounds was given up."""
    shop, proxy, outbox, end_sessions = far
    announcements, silent = PostgreSql.announcements, threading.Event()
    connect = PostgreSql.connect

    def connect_and_hush(database):
        connection = connect(database)
        proxy.hush()
        silent.set()
        return connection

    def listen(database, channel):
        if not silent.is_set():
            monkeypatch.setattr(PostgreSql, "connect", connect_and_hush)
        return announcements(database, channel)

    monkeypatch.setattr(PostgreSql, "announcements", listen)
    with outbox.relay(shop.broker, topic="Orders"):
        assert silent.wait(60)
        monkeypatch.setattr(PostgreSql, "connect", connect)
        end_sessions()
        shop.insert("('b', CURRENT_TIMESTAMP)")
        shop.arrives("b")


def test_a_database_that_falls_silent_before_a_rollback_is_given_up(far):
    """Failed before: of all that a relay asks, the rollback alone waited for ever."""
    _, proxy, outbox, end_sessions = far
    with outbox._database.answering() as connection:
        connection.query("SELECT 1")
        proxy.hush()
        end_sessions()
        connection.roll_back()
        with pytest.raises(OutboxUnavailable):
            connection.query("SELECT 1")
        connection.close()
        connection.database.break_off(connection.driver)  # as its watcher may, at that moment


@pytest.mark.parametrize(
    "use",
    [Outbox.create_tables, lambda outbox: outbox.mark("dead", [1]), lambda o: o.clean("1d")],
)
def test_each_call_gives_up_a_database_that_falls_silent(far, monkeypatch, use):
    """Failed before: behind a proxy that held the connection, a consumer waited for ever."""
    _, proxy, outbox, _ = far
    columns = PostgreSql.columns

    def hush(database, connection, table):
        proxy.hush()
        return columns(database, connection, table)

    monkeypatch.setattr(PostgreSql, "columns", hush)
    with pytest.raises(OutboxUnavailable):
        use(outbox)


def test_a_horizon_beyond_the_last_time_of_the_database_is_far_enough(shop):
    shop.insert(f"('a', {soon(60)})")
    assert shop.relay(horizon="366d").sent == 1
    shop.insert(f"('b', {soon(60)})")
    assert shop.relay(horizon=40 * 366 * 24 * 3600 * 1000).sent == 1


@pytest.mark.parametrize(("of", "moment"), [(Rounds, "_stage"), (Rounds, "_finish")])
def test_two_relays_that_run_the_same_round_send_it_once(shop, monkeypatch, of, moment):
    """The lock lets only one relay work, but nothing may depend on it."""
    shop.insert(f"('a', {soon(-1)}), ('bad', NULL)")
    wrapped = getattr(of, moment)
    inner = []

    def overtaken(self, *given, **how):
        result = None
        if moment == "stage":
            result = wrapped(self, *given, **how)
        if not inner:
            inner.append(True)
            shop.insert(f"('next', {soon(-1)})")
            with monkeypatch.context() as free:
                free.setattr(type(shop.outbox()._database), "lock", lambda *_: True)
                inner.append(shop.relay())
        return result if moment == "stage" else wrapped(self, *given, **how)

    monkeypatch.setattr(of, moment, overtaken)
    outer = shop.relay()
    assert outer.sent + inner[1].sent == 2
    assert shop.consume() == ["a", "next"]
    assert shop.states() == {"sent": 2, "refused": 1}
    assert shop.one("SELECT count(*) FROM {t}_exceptions") == "1"


def test_what_the_service_recalls_before_the_round_is_not_sent(shop):
    shop.insert(f"('stays', {soon(0)}), ('recalled', {soon(0)})")
    shop.sql("UPDATE {t} SET state = 'recalled' WHERE content = 'recalled' AND state = 'new'")
    assert shop.relay().sent == 1
    assert shop.states() == {"sent": 1, "recalled": 1}


def test_a_database_that_was_restored_is_told(shop):
    for content in ("a", "b"):
        shop.insert(f"('{content}', {soon(0)})")
        shop.relay()
    shop.sql("UPDATE {t}_relay SET rounds = 0, done = 0; UPDATE {t} SET state = 'new'")
    with pytest.raises(OutboxMisused, match="the database was restored from a backup") as failure:
        shop.relay()
    remedy = str(failure.value).partition("To send them again: ")[2].removesuffix(".")
    shop.sql(remedy)
    assert shop.relay().sent == 2


def test_a_database_that_was_restored_by_one_round_loses_nothing(shop):
    """The next round has the number of the one that Redis has published, and other messages."""
    shop.insert(f"('a', {soon(0)})")
    shop.relay()
    shop.sql("UPDATE {t}_relay SET rounds = 0, done = 0; UPDATE {t} SET state = 'new'")
    shop.insert(f"('b', {soon(0)})")
    for _ in range(2):
        with pytest.raises(OutboxMisused, match="the database was restored") as failure:
            shop.relay()
    remedy = str(failure.value).partition("To send them again: ")[2].removesuffix(".")
    shop.sql(remedy)
    assert shop.relay().sent == 2
    assert shop.contents() == ["a", "b"]


def test_times_out_of_any_range_are_refused_alone(shop):
    if not shop.is_postgresql:
        pytest.skip("MariaDB has no such times")
    shop.insert(
        f"('before Christ', '0044-03-15 00:00 BC'), ('far', '-infinity'), ('good', {soon(0)})"
    )
    assert shop.relay() == Relayed(sent=1, refused=2)
    assert "fixed_time is -9000000000000000000" in shop.refusals()["far"]


def test_texts_and_bytes_of_all_kinds_arrive(shop):
    shop.insert("('\U0001f600 ü', NULL)")
    shop.relay(defaults=Message(fixed_time=0))
    assert shop.contents() == ["\U0001f600 ü"]
    change = "MODIFY content BLOB"
    if shop.is_postgresql:
        change = "ALTER content TYPE BYTEA USING content::bytea"
    shop.sql(f"ALTER TABLE {{t}} {change}")
    connection = shop.connect()
    shop.outbox().send(connection, [Message(b"\xff\x00", fixed_time=0)])
    connection.commit()
    connection.close()
    assert shop.relay().sent == 1
    assert b"\xff\x00" in [entry.name for entry in shop.entries()]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (None, "There is no table"),
        ("CREATE TABLE {t} (id BIGINT, content TEXT)", "has no column state"),
        ("CREATE TABLE {t} (id CHAR(9), content TEXT, state TEXT)", "is not a whole number"),
    ],
)
def test_a_table_that_is_none_is_told(empty_shop, sql, told):
    if sql is not None:
        empty_shop.sql(sql + empty_shop.database.table_options)
    with pytest.raises(OutboxMisused, match=told):
        empty_shop.relay(topic=None)


def test_a_row_without_an_id_is_told(empty_shop):
    shop = empty_shop
    shop.sql(
        f"CREATE TABLE {{t}} (id INT, content TEXT, state TEXT){shop.database.table_options}; "
        "INSERT INTO {t} VALUES (NULL, 'x', 'new')"
    )
    with pytest.raises(OutboxMisused, match="a row whose id is null"):
        shop.relay(topic=None)


def test_ids_that_are_not_unique_send_nothing(empty_shop):
    shop = empty_shop
    shop.sql(
        "CREATE TABLE {t} (id INT, content TEXT, fixed_time BIGINT, state TEXT)"
        f"{shop.database.table_options}; "
        "INSERT INTO {t} VALUES (7, 'a', 17, 'new'), (7, 'b', 9999999999999, 'new')"
    )
    with pytest.raises(OutboxMisused, match="messages with the same id"):
        shop.relay(topic=None)
    assert shop.states() == {"new": 2}


@pytest.mark.parametrize("column", ["fixed_time", "expires_at"])
@pytest.mark.parametrize("kind", ["DATE", "DECIMAL(20,3)", "DOUBLE PRECISION", "TIMESTAMP", "TEXT"])
def test_a_column_whose_times_depend_on_the_session_is_refused(empty_shop, column, kind):
    """Messages of a sender in another zone once went out hours early or late."""
    shop = empty_shop
    if kind == "TIMESTAMP" and not shop.is_postgresql:
        kind = "DATETIME"  # a TIMESTAMP is an instant there
    shop.sql(
        f"CREATE TABLE {{t}} (id INT PRIMARY KEY, content TEXT, {column} {kind}, state TEXT)"
        f"{shop.database.table_options}"
    )
    with pytest.raises(OutboxMisused, match=f"column {column} of .* names no instant.*BIGINT"):
        shop.relay(topic=None)


def test_one_table_under_two_spellings_is_one_outbox(shop):
    if not shop.is_postgresql:
        pytest.skip("MariaDB tells tables by their spelling")
    for spelling in (shop.table, shop.table.upper(), f"public.{shop.table}"):
        shop.insert(f"('{spelling}', {soon(0)})")
        assert shop.outbox(table=spelling).relay(shop.broker, topic="Orders").run_once().sent == 1
    assert shop.one("SELECT sent FROM {t}_relay") == "3"


def test_a_table_without_transactions_is_refused(shop):
    if shop.is_postgresql:
        pytest.skip("all tables of PostgreSQL have them")
    shop.sql("ALTER TABLE {t} ENGINE=MyISAM")
    with pytest.raises(OutboxMisused, match="ENGINE=InnoDB"):
        shop.relay()


@pytest.mark.parametrize("lost", ["DROP TABLE {t}_relay", "DELETE FROM {t}_relay"])
def test_messages_of_a_round_that_is_forgotten_are_told_and_not_marked_as_sent(
    shop, monkeypatch, lost
):
    shop.insert(f"('orphan', {soon(-1)})")
    with monkeypatch.context() as patched:
        patched.setattr(StagedSink, "publish", killed)
        with pytest.raises(Killed):
            shop.relay()
    shop.sql(lost)
    shop.insert(f"('next', {soon(-1)})")
    with pytest.raises(OutboxMisused, match="no round is open") as failure:
        shop.relay()
    assert shop.states() == {"sending": 1, "new": 1}
    shop.sql(str(failure.value).partition("(again): ")[2].removesuffix("."))
    assert shop.relay().sent == 2
    assert shop.consume() == ["next", "orphan"]


def test_a_round_that_another_redis_may_have_is_told(shop, monkeypatch):
    shop.insert(f"('first', {soon(-1)})")
    shop.relay()
    shop.insert(f"('a', {soon(-1)})")
    with monkeypatch.context() as patched:
        patched.setattr(Rounds, "_finish", killed)
        with pytest.raises(Killed):
            shop.relay()
    other = Broker(shop.broker.server, key_prefix=f"{shop.prefix}other:")
    other.create("Orders", "FixedTime", slot_amount=1)
    relay = shop.outbox().relay(other, topic="Orders")
    with pytest.raises(OutboxMisused, match="another Redis or key prefix"):
        relay.run_once()
    assert other.queue("Orders").figures().messages == 0
    other.delete("Orders")
    assert shop.relay().sent == 1
    assert shop.consume() == ["a", "first"]


def test_a_very_long_or_deep_value_holds_nobody_up(shop):
    """Once 9 MB of bytes, as hex, were too long for MariaDB, and no other message was sent."""
    change = "MODIFY content LONGBLOB"
    if shop.is_postgresql:
        change = "ALTER content TYPE BYTEA USING content::bytea"
    shop.sql(f"ALTER TABLE {{t}} {change}")
    long = (
        "decode(repeat('ff', 9000000), 'hex')" if shop.is_postgresql else "repeat(x'FF', 9000000)"
    )
    shop.insert(f"('NoSuch', {long}, 0), (NULL, 'good', 0)", "topic, content, delay")
    shop.sql(f"INSERT INTO {{t}} (headers, fixed_time) VALUES ('{'[' * 100_000}', {soon(0)})")
    assert shop.relay() == Relayed(sent=1, refused=2)
    assert shop.contents() == ["good"]


def test_a_name_that_would_end_a_statement_is_refused():
    with pytest.raises(InvalidOption, match="letters, digits and underscores"):
        Outbox("postgresql://host/shop", table="x; DROP TABLE y")
    with pytest.raises(InvalidOption, match="more than 50 characters"):
        Outbox("postgresql://host/shop", table="s." + "x" * 51)


def test_a_table_that_would_be_two_at_once_is_refused():
    """Failed before: a round in which a message was refused failed for ever."""
    for kind, other in (("postgresql", "X"), ("postgresql", "X_Relay"), ("mysql", "x_relay")):
        with pytest.raises(InvalidOption, match="Accepted: a table of its own"):
            Outbox(f"{kind}://host/shop", table="x", exceptions=other)
    Outbox("mariadb://host/shop", table="x", exceptions="X")


def test_an_index_finds_a_thousand_due_rows_among_many(shop):
    """What a round marks is not looked for in the whole table."""
    many = 200_000
    numbers = (
        f"SELECT n FROM generate_series(1, {many}) n"
        if shop.is_postgresql
        else f"SELECT seq AS n FROM seq_1_to_{many}"
    )
    at = "CURRENT_TIMESTAMP + INTERVAL (CAST(n AS SIGNED) - 1000) MINUTE"
    if shop.is_postgresql:
        at = "CURRENT_TIMESTAMP + (n - 1000) * INTERVAL '1 minute'"
    shop.sql(
        f"INSERT INTO {{t}} (content, fixed_time) SELECT n, {at} FROM ({numbers}) x; "
        f"ANALYZE {'' if shop.is_postgresql else 'TABLE'} {{t}};"
    )
    outbox = shop.outbox()
    connection = outbox._database.connect()
    rounds = outbox.relay(shop.broker)._open_rounds(connection)
    for condition, order in rounds._wanted(1_700_000_000_000):
        choice = f"SELECT id FROM {shop.table} WHERE {condition} ORDER BY {order} LIMIT 1000"
        plan = " ".join(str(row) for row in connection.query(f"EXPLAIN {choice} FOR UPDATE"))
        assert f"{shop.table}_due" in plan, plan
        assert "Seq Scan" not in plan, plan
    connection.close()


def test_a_relay_waits_for_room_in_a_topic_that_is_full(shop, caplog):
    shop.broker.alter("Orders", max_messages=4)
    queue = shop.broker.queue("Orders")
    for basis in ascii_lowercase:
        with suppress(TopicFull):
            queue.send([f"early {basis}"], slot_basis=basis, fixed_time=1000)
    shop.insert(f"('late', {soon(-1)})")
    with pytest.raises(TopicFull):
        shop.relay()
    assert stages(shop) == []
    with shop.outbox().relay(shop.broker, topic="Orders"):
        wait_until(lambda: "Topic Orders is full" in caplog.text, "a relay that waits")
        shop.broker.alter("Orders", max_messages="none")
        wait_until(lambda: "late" in shop.contents(), "the message")
    assert shop.states() == {"sent": 1}
