"""What a service holds: send, relay in a thread, mark, clean."""

import threading
from datetime import UTC, datetime

import pytest

from rmq_spark.client import Message
from rmq_spark.errors import InvalidMessage, InvalidOption, OutboxMisused, OutboxUnavailable
from rmq_spark.outbox import Outbox, Round
from rmq_spark.outbox.rounds import Rounds

from ..waiting import wait_until
from .shop import soon


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
        (Message(b"\xff", fixed_time=0), "content is b'\\\\xff', which is no UTF-8"),
        (Message("x", headers={"a": 7}), "the header 'a' is 7"),
    ],
)
def test_what_no_row_can_hold_is_refused_and_inserts_nothing(shop, message, told):
    connection = shop.connect()
    with pytest.raises(InvalidMessage, match=told):
        shop.outbox().send(connection, [Message("good", fixed_time=0), message])
    connection.commit()
    connection.close()
    assert shop.states() == {}


def test_a_value_without_a_column_is_refused(shop):
    shop.sql("ALTER TABLE {t} DROP COLUMN priority")
    connection = shop.connect()
    with pytest.raises(InvalidMessage, match="has priority, and the message table has no column"):
        shop.outbox().send(connection, [Message("x", priority=17)])
    connection.close()


def test_one_message_in_place_of_a_list_is_refused(shop):
    with pytest.raises(InvalidMessage, match=r"Write send\(connection, \[...\]\)"):
        shop.outbox().send(None, Message("x"))


def test_a_second_relay_waits_until_the_first_ends(shop, monkeypatch):
    first, second = (shop.outbox().relay(shop.broker, topic="Orders") for _ in range(2))
    with first:
        send(shop, [Message("a", fixed_time=0)])
        shop.arrives("a")
        monkeypatch.setattr("rmq_spark.outbox.relaying._LOCK_S", 0.05)
        with second:
            send(shop, [Message("b", fixed_time=0)])
            shop.arrives("b")
            assert second.total == Round()
            first.stop()
            wait_until(lambda: not first.is_running, "ended")
            send(shop, [Message("c", fixed_time=0)])
            shop.arrives("c")
    assert (first.total.sent, second.total.sent) == (2, 1)


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


def test_a_kind_of_database_that_is_unknown_is_told():
    with pytest.raises(InvalidOption, match="Accepted: postgresql://, postgres://, mariadb://"):
        Outbox("jdbc:oracle:thin:shop/sesame@//127.0.0.1:1521/shop")


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
    assert shop.refusals() == {}
    reasons = [reason for (reason,) in shop.sql("SELECT reason FROM {t}_exceptions")]
    assert reasons == [
        "The message is dead, but its state here is delivered. Expected: sent, sending."
    ]


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


def test_a_state_that_is_none_is_refused(shop):
    with pytest.raises(InvalidOption, match="Accepted: delivered, dead, refused"):
        shop.outbox().mark("done", [1])


def test_old_rows_are_deleted_and_no_others(shop, monkeypatch):
    monkeypatch.setattr("rmq_spark.outbox.outbox._ROWS_A_CLEANING", 2)
    shop.insert(", ".join(f"('{n}', {soon(-n)})" for n in range(1, 8)))
    shop.relay()
    shop.sql(f"UPDATE {{t}} SET sent_at = {soon(-60)} WHERE content IN ('1', '3', '5', '7')")
    shop.sql("UPDATE {t} SET state = 'dead' WHERE content = '7'")
    assert shop.outbox().clean("30m") == 3
    left = [content for (content,) in shop.sql("SELECT content FROM {t} ORDER BY content")]
    assert left == ["2", "4", "6", "7"]
