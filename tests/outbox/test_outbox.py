"""What a service holds: send, relay in a thread, mark, clean."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pymysql
import pytest

from rmq_spark.client import Message
from rmq_spark.errors import (
    InvalidMessage,
    InvalidOption,
    OutboxMisused,
    OutboxUnavailable,
    UnknownTopic,
)
from rmq_spark.outbox import Outbox, Relayed
from rmq_spark.outbox.rounds import Rounds
from rmq_spark.outbox.rows import ids_of

from ..waiting import wait_until
from .shop import Shop, soon


def send(shop, messages, **options):
    connection = shop.connect()
    shop.outbox().send(connection, messages, **options)
    connection.commit()
    connection.close()


def test_a_message_arrives_if_and_only_if_its_transaction_is_committed(shop):
    connection = shop.connect()
    outbox = shop.outbox()
    with outbox.relay(shop.broker, topic="Orders"):
        outbox.send(connection, [Message("kept", fixed_time=0)])
        connection.commit()
        outbox.send(connection, [Message("given up", fixed_time=0)])
        connection.rollback()
        shop.arrives("kept")
        connection.close()
        wait_until(lambda: shop.states() == {"sent": 1}, "marked")
    assert shop.contents() == ["kept"]


def test_all_values_of_a_message_arrive(shop):
    shop.broker.create("Keyed", "FixedTime", slot_amount=2, keyed=True)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    message = Message(
        "payload",
        slot_basis="basis",
        key=b"k",
        fixed_time=at,
        headers={"source": "web", "raw": b"\xff", "none": None},
        time_to_live="1h",
    )
    send(shop, [message, Message("p", key="l", delay="2s", slot_basis="basis")], topic="Keyed")
    assert shop.relay(horizon="3650d").sent == 2
    k, other = shop.entries("Keyed")
    assert (k.key, k.content, k.due_time_ms) == (b"k", b"payload", int(at.timestamp() * 1000))
    assert k.headers == (("source", b"web"), ("raw", b"\xff"), ("none", None))
    assert k.expires_at_ms == k.due_time_ms + 3_600_000
    assert other.key == b"l"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Message(b"\xff", fixed_time=0), "content is b'\\\\xff', which is not UTF-8"),
        (Message("x", headers={"a": 7}), "the header 'a' is 7"),
        (Message({"a": 1}, fixed_time=0), "Message 1 is Message"),
        (None, "Message 1 is None"),
        (5, "Message 1 is 5"),
        (Message("x", fixed_time=datetime(2030, 1, 1)), "or a datetime with a time zone"),
        (Message("x", fixed_time=-1), "Message 1: fixed_time is -1"),
        (Message("x", fixed_time=1.5), "Message 1: fixed_time is 1.5"),
        (Message("x", expires_at=10**18), "Message 1: expires_at is 10"),
        (Message("\ud800", fixed_time=0), "Message 1: content is '\\\\ud800', which is not UTF-8"),
        (Message("x", key="\ud800"), "Message 1: message_key is '\\\\ud800', which is not UTF-8"),
        (Message("x", key=5), "Message 1: message_key is 5. Accepted: text"),
        (Message("x", slot_basis=1.5), "Message 1: slot_basis is 1.5. Accepted: text"),
        (Message("x", key="k" * 3000), "The database does not take the messages"),
        (Message("x", priority=2**70), "The database does not take the messages"),
    ],
)
def test_what_no_row_can_hold_is_refused_and_inserts_nothing(shop, message, told):
    connection = shop.connect()
    with pytest.raises(InvalidMessage, match=told):
        shop.outbox().send(connection, [Message("good", fixed_time=0), message])
    connection.commit()
    connection.close()
    assert shop.states() == {}


def test_a_text_that_is_none_is_refused_for_a_column_of_bytes_too(shop):
    """It once came out as a UnicodeEncodeError."""
    change = "MODIFY content LONGBLOB"
    if shop.is_postgresql:
        change = "ALTER content TYPE BYTEA USING content::bytea"
    shop.sql(f"ALTER TABLE {{t}} {change}")
    connection = shop.connect()
    with pytest.raises(InvalidMessage, match=r"Message 0: content is .* is not UTF-8"):
        shop.outbox().send(connection, [Message("\ud800", fixed_time=0)])
    connection.close()


def test_a_transaction_goes_on_after_a_message_that_the_database_refuses(shop):
    connection = shop.connect()
    outbox = shop.outbox()
    outbox.send(connection, [Message("before", fixed_time=0)])
    with pytest.raises(InvalidMessage, match="Nothing was inserted"):
        outbox.send(connection, [Message("half", fixed_time=0), Message("x", key="k" * 3000)])
    outbox.send(connection, [Message("after", fixed_time=0)])
    connection.commit()
    connection.close()
    assert [content for (content,) in shop.sql("SELECT content FROM {t} ORDER BY id")] == [
        "before",
        "after",
    ]


def test_settings_of_the_services_session_stay(shop):
    if shop.is_postgresql:
        pytest.skip("only MariaDB needs others")
    connection = shop.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+03:00', sql_mode = 'ANSI_QUOTES'")
    shop.outbox().send(connection, [Message("x", fixed_time=0)])
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@time_zone, @@sql_mode")
        assert cursor.fetchall() == (("+03:00", "ANSI_QUOTES"),)
    connection.close()


def test_a_time_that_a_local_clock_shows_twice_is_kept(shop):
    at = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # 2:30 in Berlin, for the second time
    connection = shop.connect()
    zone = "SET TIME ZONE 'Europe/Berlin'"
    if not shop.is_postgresql:
        zone = "SET time_zone = '+01:00'"
    with connection.cursor() as cursor:
        cursor.execute(zone)
    shop.outbox().send(connection, [Message("x", fixed_time=at)])
    connection.commit()
    connection.close()
    shop.relay(horizon="3650d")
    assert [entry.due_time_ms for entry in shop.entries()] == [int(at.timestamp() * 1000)]


def test_a_connection_whose_rows_are_no_tuples_is_taken(shop):
    connection = shop.connect()
    if shop.is_postgresql:
        connection.row_factory = psycopg.rows.dict_row
    else:
        connection.cursorclass = pymysql.cursors.DictCursor
    shop.outbox().send(connection, [Message("x", fixed_time=0)])
    connection.commit()
    connection.close()
    assert shop.states() == {"new": 1}


@pytest.mark.parametrize(
    "given", [None, object(), psycopg.AsyncConnection, sqlite3.connect(":memory:")]
)
def test_what_is_no_connection_is_told(shop, given):
    with pytest.raises(InvalidOption, match="driver_connection"):
        shop.outbox().send(given, [Message("x", fixed_time=0)])


def test_a_connection_without_a_transaction_is_told(shop):
    connection = shop.connect()
    if shop.is_postgresql:
        connection.autocommit = True
    else:
        connection.autocommit(True)
    with pytest.raises(OutboxMisused, match="send needs an open transaction"):
        shop.outbox().send(connection, [Message("x", fixed_time=0)])
    assert shop.states() == {}
    connection.cursor().execute("BEGIN")
    shop.outbox().send(connection, [Message("x", fixed_time=0)])
    connection.cursor().execute("COMMIT")
    connection.close()
    assert shop.states() == {"new": 1}


def test_a_value_without_a_column_is_refused(shop):
    shop.sql("ALTER TABLE {t} DROP COLUMN priority")
    connection = shop.connect()
    with pytest.raises(InvalidMessage, match="has priority, and the message table has no column"):
        shop.outbox().send(connection, [Message("x", priority=17)])
    connection.close()


@pytest.mark.parametrize("given", [Message("x"), "x", {"a": 1}])
def test_one_message_in_place_of_a_list_is_refused(shop, given):
    with pytest.raises(InvalidMessage, match=r"Write send\(connection, \[...\]\)"):
        shop.outbox().send(None, given)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"limit": 0}, InvalidOption, "limit=0 is not accepted"),
        ({"limit": 10.5}, InvalidOption, "limit=10.5 is not accepted"),
        ({"topic": "Ordres"}, UnknownTopic, "Orders"),
        ({"topic": "Calls"}, UnknownTopic, "Create it with"),
        ({"keep": 30}, InvalidOption, "has no unit"),
    ],
)
def test_a_relay_checks_its_options(shop, options, error, told):
    with pytest.raises(error, match=told):
        shop.outbox().relay(shop.broker, **options)


def test_a_relay_that_works_or_has_ended_is_not_used_again(shop):
    relay = shop.outbox().relay(shop.broker)
    with relay, pytest.raises(OutboxMisused, match="works already"):
        relay.run_once()
    with pytest.raises(OutboxMisused, match="has ended"), relay:
        raise AssertionError("entered")


def test_run_once_leaves_the_messages_to_a_relay_that_works(shop, monkeypatch):
    monkeypatch.setattr("rmq_spark.outbox.relay._LOCK_S", 0.05)
    monkeypatch.setattr("rmq_spark.outbox.relay._ONCE_S", 0.1)
    with shop.outbox().relay(shop.broker, topic="Orders"):
        send(shop, [Message("a", fixed_time=0)])
        shop.arrives("a")
        assert shop.outbox().relay(shop.broker).run_once() == Relayed()


def test_an_error_that_nobody_expects_ends_the_relay_and_is_kept(shop, monkeypatch):
    monkeypatch.setattr("rmq_spark.outbox.rounds.Rounds._send", lambda *_: 1 / 0)
    with shop.outbox().relay(shop.broker, topic="Orders") as relay:
        send(shop, [Message("a", fixed_time=0)])
        wait_until(lambda: not relay.is_running, "ended")
    assert isinstance(relay.error, ZeroDivisionError)


def test_a_second_relay_waits_until_the_first_ends(shop, monkeypatch):
    first, second = (shop.outbox().relay(shop.broker, topic="Orders") for _ in range(2))
    with first:
        send(shop, [Message("a", fixed_time=0)])
        shop.arrives("a")
        monkeypatch.setattr("rmq_spark.outbox.relay._LOCK_S", 0.05)
        with second:
            send(shop, [Message("b", fixed_time=0)])
            shop.arrives("b")
            assert second.total == Relayed()
            first.stop()
            wait_until(lambda: not first.is_running, "ended")
            send(shop, [Message("c", fixed_time=0)])
            shop.arrives("c")
    assert (first.total.sent, second.total.sent) == (2, 1)


@pytest.fixture
def postgresql_shop(postgresql_server, redis_of_outbox):
    shop = Shop(postgresql_server, redis_of_outbox.url)
    shop.broker.create("Orders", "FixedTime", slot_amount=4)
    shop.outbox().create_tables()
    yield shop
    shop.close()


def test_a_relay_that_waits_for_another_one_does_not_listen(postgresql_shop):
    """Seen: PostgreSQL kept every announcement for a relay that read none, without an end."""
    shop = postgresql_shop
    first, second = (shop.outbox().relay(shop.broker, topic="Orders") for _ in range(2))
    with first:
        send(shop, [Message("a", fixed_time=0)])
        shop.arrives("a")
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %{t}%'"
        wait_until(lambda: shop.one(listening) == "1", "the first listens")
        with second:
            assert shop.one(listening) == "1"


def test_a_notification_with_the_name_of_the_table_wakes_the_relay(postgresql_shop):
    """Failed before: the relay listened to another name, which no page gave."""
    shop = postgresql_shop
    with shop.outbox().relay(shop.broker, topic="Orders", interval="1h"):
        listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %{t}%'"
        wait_until(lambda: shop.one(listens) == "1", "a relay that listens")
        shop.insert(f"('a', {soon(0)})")
        shop.sql("SELECT pg_notify('{t}', '')")
        shop.arrives("a")


def test_a_strict_default_of_the_database_fails_no_mark(postgresql_shop):
    """Seen: beside a service, every third mark and a relay's rounds could not be serialized."""
    shop = postgresql_shop
    send(shop, [Message("a", fixed_time=0)])
    shop.relay()
    login = shop.database.environment
    strict = Outbox(
        f"{shop.database.url}?options=-c%20default_transaction_isolation%3Dserializable",
        user=login["RMQ_JDBC_USER"],
        password=login["RMQ_JDBC_PASSWORD"],
        table=shop.table,
    )
    with shop.connect() as busy, ThreadPoolExecutor() as pool:
        busy.execute(f"UPDATE {shop.table} SET sent_at = CURRENT_TIMESTAMP")
        marked = pool.submit(strict.mark, "delivered", [1])
        wait_until(lambda: shop.one(shop.database.waiting) == "1", "a wait for the row")
        busy.commit()
        assert marked.result() == 1
    assert shop.states() == {"delivered": 1}


def test_a_relay_goes_on_after_its_connections_were_cut(shop):
    with shop.outbox().relay(shop.broker, topic="Orders") as relay:
        send(shop, [Message("a", fixed_time=0)])
        shop.arrives("a")
        if shop.is_postgresql:
            shop.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
                "pg_backend_pid() AND datname = current_database()"
            )
        else:
            ids = shop.sql(
                "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
            )
            shop.sql("".join(f"KILL {number};" for (number,) in ids))
        send(shop, [Message("b", fixed_time=0)])
        shop.arrives("b")
        assert relay.is_running


def test_a_lasting_error_ends_the_relay_and_is_logged(shop, caplog):
    with shop.outbox().relay(shop.broker, topic="Orders") as relay:
        for content in ("a", "b"):
            send(shop, [Message(content, fixed_time=0)])
            shop.arrives(content)
        wait_until(lambda: shop.states() == {"sent": 2}, "marked")
        shop.sql("UPDATE {t}_relay SET rounds = 0, done = 0")  # as a backup had them
        send(shop, [Message("c", fixed_time=0)])
        wait_until(lambda: not relay.is_running, "ended")
    assert "the database was restored" in caplog.text


def test_a_table_that_is_missing_is_told_where_the_relay_is_entered(empty_shop):
    with (
        pytest.raises(OutboxMisused, match="There is no table"),
        empty_shop.outbox().relay(empty_shop.broker),
    ):
        raise AssertionError("entered")


def test_a_database_that_refuses_the_password_shows_none(shop):
    outbox = Outbox(shop.database.url, user="shop", password="mistyped", table=shop.table)
    with pytest.raises(OutboxUnavailable) as failure:
        outbox.relay(shop.broker).run()
    assert "mistyped" not in str(failure.value)
    assert "mistyped" not in repr(outbox)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:ses/ame@127.0.0.1/shop",
        "postgresql://shop:sesame/shop",
        "jdbc:oracle:thin:shop/sesame@//127.0.0.1:1521/shop",
        "jdbc:mysql://(host=127.0.0.1,user=shop,password=sesame)/shop",
    ],
)
def test_a_url_that_is_none_is_told_and_not_shown(url):
    with pytest.raises(InvalidOption, match="The url of an outbox") as failure:
        Outbox(url)
    assert "ame" not in str(failure.value)


@pytest.mark.parametrize("kind", ["postgresql", "jdbc:mariadb"])
def test_user_and_password_in_the_url_are_used_and_not_shown(kind):
    for url in ("://u%20v:ses%2Fame@h:7/shop", "://h:7/shop?user=u%20v&password=ses%2Fame"):
        outbox = Outbox(kind + url)
        assert (outbox._database.user, outbox._database.password) == ("u v", "ses/ame")
        assert repr(outbox) == f"Outbox({kind.removeprefix('jdbc:')}://h:7/shop, rmq_outbox)"


def test_a_setting_that_the_driver_does_not_know_is_told(shop):
    outbox = Outbox(shop.database.url + "?useSSL=false", user="shop")
    with pytest.raises((InvalidOption, OutboxUnavailable), match="useSSL"):
        outbox.create_tables()


def test_a_password_that_pymysql_cannot_encrypt_is_told(monkeypatch):
    """Failed before: PyMySQL raises a RuntimeError, at a MySQL 8 without TLS."""
    monkeypatch.setattr(pymysql._auth, "_have_cryptography", False)
    encrypt = pymysql._auth.sha2_rsa_encrypt
    monkeypatch.setattr(pymysql, "connect", lambda **_: encrypt(b"p", b"s" * 20, b"key"))
    with pytest.raises(InvalidOption, match=r"'cryptography' .* pip install 'rmq-spark\[ma"):
        Outbox("mysql://u:p@127.0.0.1/d").create_tables()


def test_tables_that_two_create_at_once_are_created_once(empty_shop):
    outboxes = [empty_shop.outbox() for _ in range(4)]
    failures = []

    def create(outbox):
        try:
            outbox.create_tables()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=create, args=[outbox]) for outbox in outboxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert empty_shop.one("SELECT count(*) FROM {t}_relay") == "1"


# -- what became of messages


def test_what_became_of_messages_is_written_back(shop):
    send(shop, [Message(name, fixed_time=0) for name in ("good", "bad", "lost")])
    shop.relay(tracked=True)
    outbox = shop.outbox()
    with shop.broker.consumer("Orders", "c") as consumer:
        batch = consumer.poll()
        by_name = {message.content.decode(): message for message in batch}
        assert outbox.mark("delivered", [by_name["good"]]) == 1
        assert outbox.mark("dead", [by_name["bad"]]) == 1
        batch.commit()
    assert shop.states() == {"delivered": 1, "dead": 1, "sent": 1}
    assert outbox.mark("delivered", [by_name["good"]]) == 1  # again
    assert outbox.mark("delivered", [by_name["bad"]]) == 1  # requeued
    assert outbox.mark("dead", [by_name["bad"]]) == 0
    reasons = [reason for (reason,) in shop.sql("SELECT reason FROM {t}_exceptions")]
    assert reasons == [
        "The message is dead, but its state here is delivered. Expected: sent, sending."
    ]


def test_a_header_that_a_service_forwards_marks_no_other_message(shop):
    connection = shop.connect()
    forwarded = Message("x", fixed_time=0, headers=[("rmq-outbox-id", "77"), ("a", "b")])
    shop.outbox().send(connection, [forwarded])
    connection.commit()
    connection.close()
    shop.relay(tracked=True)
    (entry,) = shop.entries()
    assert entry.headers == (("a", b"b"), ("rmq-outbox-id", b"1"))
    forged = [Message("x", headers=[("rmq-outbox-id", v)]) for v in (b"abc", None, b"1" * 5000)]
    assert ids_of([entry, *forged, 5]) == [1, 5]
    with pytest.raises(InvalidOption, match="mark takes a list"):
        shop.outbox().mark("dead", 5)


def test_states_that_are_not_expected_get_a_row_with_both(shop):
    shop.insert(f"('new', {soon(60)})")
    assert shop.outbox().mark("delivered", [1, 77]) == 0
    rows = shop.sql("SELECT origin, reason FROM {t}_exceptions ORDER BY origin")
    assert rows == [
        [
            f"{shop.table} id 1",
            "The message is delivered, but its state here is new. Expected: sent, sending, dead.",
        ],
        [
            f"{shop.table} id 77",
            "The message is delivered, but it has no row here. Expected: sent, sending, dead.",
        ],
    ]
    assert shop.states() == {"new": 1}


def test_a_message_that_is_consumed_before_it_is_marked_as_sent_stays_delivered(shop, monkeypatch):
    shop.insert(f"('quick', {soon(0)})")
    finish = Rounds._finish

    def late(self, *given):
        assert shop.outbox().mark("delivered", [1]) == 1
        return finish(self, *given)

    monkeypatch.setattr(Rounds, "_finish", late)
    shop.relay()
    assert shop.states() == {"delivered": 1}
    shop.sql(f"UPDATE {{t}} SET sent_at = {soon(-60)} WHERE sent_at IS NOT NULL")
    assert shop.outbox().clean("30m") == 1


def test_a_state_that_is_none_is_refused(shop):
    with pytest.raises(InvalidOption, match="Accepted: delivered, dead, refused"):
        shop.outbox().mark("done", [1])


@pytest.fixture
def old_rows(shop, monkeypatch):
    """1, 3 and 5 were sent an hour ago and are done; 7 is dead; the others were just sent."""
    monkeypatch.setattr("rmq_spark.outbox.rows._ROWS_A_STEP", 2)
    monkeypatch.setattr("rmq_spark.outbox.rows.IDS_A_STATEMENT", 1)
    shop.insert(", ".join(f"('{n}', {soon(-n)})" for n in range(1, 8)))
    shop.relay()
    shop.sql(f"UPDATE {{t}} SET sent_at = {soon(-60)} WHERE content IN ('1', '3', '5', '7')")
    shop.sql("UPDATE {t} SET state = 'dead' WHERE content = '7'")


def left(shop):
    return [content for (content,) in shop.sql("SELECT content FROM {t} ORDER BY content")]


@pytest.mark.parametrize(
    ("older_than", "states", "told"),
    [(30, ["sent"], "has no unit"), ("30d", "new", "Accepted: sent, delivered, dead, refused")],
)
def test_what_to_clean_is_checked(shop, older_than, states, told):
    with pytest.raises(InvalidOption, match=told):
        shop.outbox().clean(older_than, states)


@pytest.mark.parametrize(
    "use", [lambda outbox: outbox.clean("1d"), lambda outbox: outbox.mark("dead", [1])]
)
def test_a_table_that_is_missing_is_told_everywhere(empty_shop, use):
    with pytest.raises(OutboxMisused, match=r"Create it with Outbox.create_tables\(\)"):
        use(empty_shop.outbox())


def test_old_rows_are_deleted_and_no_others(shop, old_rows):
    assert shop.outbox().clean("30m") == 3
    assert left(shop) == ["2", "4", "6", "7"]
    assert shop.outbox().clean("30m", states=["dead"]) == 1


def test_old_rows_that_were_refused_are_deleted(shop):
    shop.insert(f"('bad', NULL), ('by the target', {soon(0)})")
    assert shop.relay() == Relayed(sent=1, refused=1)
    shop.outbox().mark("refused", [2])
    shop.sql(f"UPDATE {{t}} SET sent_at = {soon(-60)} WHERE sent_at IS NOT NULL")
    assert shop.outbox().clean("30m", ["refused"]) == 2


def test_a_relay_deletes_old_rows_when_nothing_else_is_to_do(shop, old_rows):
    shop.insert(f"('new', {soon(-1)})")
    relay = shop.outbox().relay(shop.broker, topic="Orders", keep="30m")
    assert relay.run_once().sent == 1
    assert relay.deleted == 3
    assert left(shop) == ["2", "4", "6", "7", "new"]


def test_cleaning_does_not_wait_for_rows_that_are_locked(shop, old_rows):
    connection = shop.connect()
    shop.outbox().send(connection, [Message("uncommitted", fixed_time=0)])
    assert shop.outbox().clean("30m") == 3
    connection.rollback()
    connection.close()


def test_a_table_that_does_not_say_when_it_was_sent_is_not_cleaned(shop):
    shop.sql("ALTER TABLE {t} DROP COLUMN sent_at")
    with pytest.raises(OutboxMisused, match="has no column sent_at"):
        shop.outbox().clean("30m")
