"""The job relay_outbox: its arguments, and what it prints. tests/outbox has the rest."""

import pytest

from rmq_spark.errors import InvalidOption, OutboxMisused, UnknownTopic

ORDERS = ("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=4")


@pytest.fixture(params=["postgresql_server", "mariadb_server"])
def database(request):
    return request.getfixturevalue(request.param)


def test_tables_and_topic_are_created_and_messages_relayed(trade):
    assert trade.relay("--create-tables", *ORDERS) == ("0 messages sent, 0 refused")
    trade.sql("INSERT INTO {t} (content, delay) VALUES ('a', 0), ('b', NULL)")
    assert trade.relay(*ORDERS) == "1 messages sent, 1 refused"
    assert trade.contents() == ["a"]


def test_values_that_rows_lack_come_from_options(trade):
    trade.relay("--create-tables", *ORDERS)
    trade.sql("INSERT INTO {t} (content) VALUES ('a')")
    assert trade.relay(*ORDERS, "-o", "fixedTime=17").startswith("1 messages sent")
    assert [entry.due_time_ms for entry in trade.entries()] == [17]


def test_options_of_a_new_topic_are_for_that_of_the_option_alone(trade):
    trade.relay("--create-tables", *ORDERS)
    trade.broker.create("Mails", "FixedTime", slot_amount=1)
    trade.sql("INSERT INTO {t} (topic, content, delay) VALUES ('Mails', 'm', 0)")
    new = ("--topic", "Invoices", "-o", "topicType=FixedTime", "-o", "groups=billing,audit")
    told = trade.relay(*new, "-o", "maxRetries=3", "-o", "retryBackoff=1s")
    assert told.startswith("1 messages sent")
    assert trade.contents("Mails") == ["m"]


def test_messages_name_their_rows_and_old_rows_are_deleted(trade):
    trade.relay("--create-tables", *ORDERS)
    trade.sql("INSERT INTO {t} (content, delay) VALUES ('a', 0)")
    told = trade.relay(*ORDERS, "--tracked", "--keep", "0s", "--exceptions", f"{trade.table}_bad")
    assert told.endswith("; 1 old ones deleted")
    assert [entry.headers for entry in trade.entries()] == [(("rmq-outbox-id", b"1"),)]
    assert trade.sql("SELECT * FROM {t}_bad") == []


def test_a_topic_that_is_not_there_is_told_before_anything_is_sent(trade):
    with pytest.raises(UnknownTopic):
        trade.relay("--create-tables", "--topic", "Orders")


def test_a_table_that_is_missing_is_told(trade):
    with pytest.raises(OutboxMisused, match="There is no table"):
        trade.relay(*ORDERS)


def test_no_database_is_told(trade, monkeypatch):
    monkeypatch.delenv("RMQ_JDBC_URL")
    with pytest.raises(InvalidOption, match="--url, or RMQ_JDBC_URL"):
        trade.relay(*ORDERS)
