"""An outbox behind PgBouncer: in transaction mode each transaction may have another session."""

import threading
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from rmq_spark.client import Message
from rmq_spark.errors import InvalidMessage, OutboxMisused
from rmq_spark.outbox import Outbox

from .. import postgres

# psycopg prepares a statement when it was used more often.
OFTEN = 8


@pytest.fixture
def database(postgresql_server):
    return postgresql_server


@contextmanager
def behind(shop, mode="transaction", **settings):
    """Functions that make an outbox behind a pooler, and connect to it as a service does."""
    login = {"user": postgres.USER, "password": postgres.PASSWORD}
    with postgres.pgbouncer(shop.database, mode, **settings) as jdbc:
        url = jdbc.removeprefix("jdbc:")
        outbox = partial(Outbox, url, table=shop.table, **login)
        yield outbox, partial(psycopg.connect, url, **login)


def messages(begin):
    return [Message(f"{begin} {n}", fixed_time=0) for n in range(3)]


def test_connections_that_share_a_session_can_all_send(shop):
    with behind(shop) as (new_outbox, connect):
        outbox = new_outbox()
        for name in ("a", "b", "c"):
            with connect() as connection:
                for number in range(OFTEN):
                    outbox.send(connection, messages(f"{name} {number}"))
                    connection.commit()
                assert connection.prepare_threshold == 5  # the program's own
    shop.relay()
    assert len(shop.entries()) == 3 * OFTEN * 3


def test_an_outbox_of_each_request_can_send(shop):
    with behind(shop) as (new_outbox, connect):
        for name in ("a", "b"):
            with connect() as connection:
                for number in range(OFTEN):
                    new_outbox().send(connection, messages(f"{name} {number}"))
                    connection.commit()
    assert shop.one("SELECT count(*) FROM {t}") == str(2 * OFTEN * 3)


def test_many_connections_can_send_at_the_same_time(shop):
    failures = []
    with behind(shop) as (new_outbox, connect):
        outbox = new_outbox()

        def work(name):
            try:
                with connect() as connection:
                    for number in range(2 * OFTEN):
                        outbox.send(connection, messages(f"{name} {number}"))
                        connection.commit()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert shop.one("SELECT count(*) FROM {t}") == str(10 * 2 * OFTEN * 3)


def test_a_failed_send_leaves_the_connection_as_it_was(shop):
    with shop.connect() as connection:
        connection.prepare_threshold = 3
        with pytest.raises(InvalidMessage):
            shop.outbox().send(connection, [Message("x", priority=2**70)])
        assert connection.prepare_threshold == 3


def test_an_error_of_the_connection_is_not_blamed_on_a_message(shop):
    with shop.connect() as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM none")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            shop.outbox().send(connection, [Message("x", fixed_time=0)])
        connection.rollback()
        outbox = shop.outbox()
        outbox.send(connection, [Message("x", fixed_time=0)])
        connection.commit()
        shop.sql("ALTER TABLE {t} DROP COLUMN priority")
        with pytest.raises(psycopg.errors.UndefinedColumn):
            outbox.send(connection, [Message("x", fixed_time=0)])


@pytest.mark.parametrize("round_robin", [0, 1])
@pytest.mark.parametrize("sessions", [1, 2])
def test_a_relay_notices_that_it_has_no_session_of_its_own(shop, sessions, round_robin):
    settings = {"default_pool_size": sessions, "server_round_robin": round_robin}
    with behind(shop, **settings) as (new_outbox, connect):
        with connect() as one, connect() as another:  # both sessions are there, and idle
            for each in (one, another)[:sessions]:
                each.execute("SELECT 1")
        for start in (lambda relay: relay.__enter__(), lambda relay: relay.run_once()):
            with pytest.raises(OutboxMisused, match="PgBouncer in transaction mode"):
                start(new_outbox().relay(shop.broker, topic="Orders"))


def test_a_relay_works_in_a_pool_of_sessions(shop):
    with behind(shop, "session", default_pool_size=9) as (new_outbox, connect):
        outbox = new_outbox()
        with outbox.relay(shop.broker, topic="Orders"), connect() as connection:
            outbox.send(connection, messages("a"))
            connection.commit()
            shop.arrives("a 0")


def test_everything_but_the_relay_works_behind_it(shop):
    with behind(shop) as (new_outbox, connect):
        outbox = new_outbox()
        outbox.create_tables()
        for _ in range(OFTEN):
            with connect() as connection:
                outbox.send(connection, messages("a"))
            shop.relay()
            assert outbox.clean("0s") == 3
