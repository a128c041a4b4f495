"""The outbox in a real PostgreSQL: what is sent, what waits, what is refused, who goes first."""

import subprocess
import threading
import time

import pytest

from rmq_spark.errors import InvalidOption, UnknownTopic
from rmq_spark.jobs.databases.database import Database
from rmq_spark.jobs.databases.jdbc_connection import Connection
from rmq_spark.jobs.program import JobFailed
from rmq_spark.protocol.pages import QueueKind

ORDERS = ("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=4")


@pytest.fixture
def outbox(trade):
    trade.relay("--create-tables", *ORDERS)
    return trade


def states(trade):
    return dict(trade.psql("SELECT state, count(*) FROM {t} GROUP BY state"))


def test_what_is_due_within_the_horizon_is_sent_and_marked(outbox):
    outbox.psql(
        "INSERT INTO {t} (content, fixed_time) VALUES ('soon', now() + interval '9 minutes'), "
        "('later', now() + interval '11 minutes'), ('long ago', now() - interval '1 day')"
    )
    assert outbox.relay(*ORDERS).startswith("2 messages sent")
    assert outbox.contents() == ["long ago", "soon"]
    assert states(outbox) == {"sent": "2", "new": "1"}
    assert outbox.count("SELECT count(*) FROM {t} WHERE sent_at IS NOT NULL") == 2
    assert outbox.relay(*ORDERS, "--horizon", "12m").startswith("1 messages sent")


def test_a_time_keeps_its_zone(outbox):
    outbox.psql("INSERT INTO {t} (content, fixed_time) VALUES ('x', '2020-02-02 12:00:00.5+05:30')")
    outbox.relay(*ORDERS)
    queue = outbox.broker.queue("Orders")
    (page,) = queue.pages(QueueKind.STORE, queue.definition.slot_of(b"x"))
    assert page.due_times_ms() == [1580625000500]


def test_times_may_be_whole_numbers_and_columns_may_be_missing(trade):
    trade.psql(
        "CREATE TABLE {t} (id INT PRIMARY KEY, content TEXT, fixed_time BIGINT, state TEXT); "
        "INSERT INTO {t} VALUES (1, 'due', 17, 'new'), (2, 'in 2286', 9999999999999, 'new')"
    )
    assert trade.relay(*ORDERS).startswith("1 messages sent")
    assert trade.contents() == ["due"]


def test_messages_of_all_types_go_to_the_topic_of_their_row(outbox):
    outbox.broker.create("Mails", "RangeMerge", slot_amount=1)
    outbox.broker.create("Jobs", "Priority", slot_amount=1)
    outbox.psql(
        "INSERT INTO {t} (topic, content, slot_basis, time_range, priority) VALUES "
        "('Mails', 'm', 'k', 1000, NULL), ('Jobs', 'p', NULL, NULL, 99)"
    )
    assert outbox.relay().startswith("2 messages sent")
    assert outbox.contents("Mails") == ["m"]
    assert outbox.contents("Jobs") == ["p"]


def test_a_message_with_a_delay_is_sent_at_once_and_due_later(outbox):
    outbox.psql(
        "INSERT INTO {t} (content, delay, fixed_time) VALUES ('at once', 0, NULL), "
        "('later', 3600000, NULL), ('both', 7, now())"
    )
    assert outbox.relay(*ORDERS) == "2 messages sent, 0 of them late arrivals; 1 refused"
    ((reason,),) = outbox.psql("SELECT reason FROM {t}_exceptions")
    assert "delay is 7. Accepted: null, as fixedTime is " in reason
    store = outbox.broker.queue("Orders").figures().store
    assert (store.count, store.due) == (2, 1)


def test_what_a_topic_refuses_goes_to_the_exceptions_and_holds_nobody_up(outbox):
    outbox.broker.create("Jobs", "Priority", slot_amount=1)
    outbox.psql(
        "INSERT INTO {t} (topic, content, priority, fixed_time) VALUES ('Jobs', 'too low', 3, NULL)"
        ", ('No/Such', 'no name', 99, NULL), ('NoSuch', 'no topic', 99, NULL), "
        "(NULL, 'no time', NULL, NULL), ('Jobs', 'good', 99, NULL), (NULL, 'due', NULL, now())"
    )
    assert outbox.relay(*ORDERS) == "2 messages sent, 0 of them late arrivals; 4 refused"
    assert states(outbox) == {"sent": "2", "refused": "4"}
    rows = outbox.psql("SELECT origin, topic, content, reason FROM {t}_exceptions ORDER BY origin")
    assert [row[:3] for row in rows] == [
        [f"{outbox.table} id 1", "Jobs", "too low"],
        [f"{outbox.table} id 2", "No/Such", "no name"],
        [f"{outbox.table} id 3", "NoSuch", "no topic"],
        [f"{outbox.table} id 4", "Orders", "no time"],
    ]
    assert "priority is 3. Accepted: a whole number, 17 to" in rows[0][3]
    assert all("was sent" not in row[3] for row in rows)
    outbox.psql("UPDATE {t} SET state = 'new', priority = 17 WHERE content = 'too low'")  # the mend
    assert outbox.relay(*ORDERS).startswith("1 messages sent")


def test_an_outbox_in_derby_is_sent(trade):
    url = f"jdbc:derby:{trade.folder}/shop;create=true"
    trade.relay("--url", url, "--create-tables", *ORDERS)
    with Database(trade.spark, {"url": url}).connect() as connection:
        for content, minutes in (("due", 5), ("late", -5), ("later", 15)):
            at = f"{{fn TIMESTAMPADD(SQL_TSI_MINUTE, {minutes}, CURRENT_TIMESTAMP)}}"
            insert = f"INSERT INTO {trade.table} (content, fixed_time) VALUES (?, {at})"
            connection.update(insert, content)
        connection.update(f"INSERT INTO {trade.table} (content) VALUES ('no time')")
    assert trade.relay("--url", url, *ORDERS).startswith("2 messages sent")
    assert trade.contents() == ["due", "late"]
    with Database(trade.spark, {"url": url}).connect() as connection:
        states = f"SELECT state, count(*) FROM {trade.table} GROUP BY state"
        assert dict(connection.query(states)) == {"sent": 2, "new": 1, "refused": 1}
        ((reason,),) = connection.query(f"SELECT reason FROM {trade.table}_exceptions")
        assert "fixedTime is None" in reason


def test_keys_headers_and_expiry_are_sent(outbox):
    outbox.broker.create("Mails", "FixedTime", slot_amount=1)
    keyed = (*ORDERS, "-o", "keyed=true")
    outbox.broker.delete("Orders")
    outbox.psql(
        "INSERT INTO {t} (topic, message_key, content, delay, headers, expires_at) VALUES "
        """(NULL, 'a', 'paid', 0, '{"source": "web", "none": null}', '2100-01-01T00:00Z'), """
        """(NULL, 'b', NULL, 0, '[{"key": "id", "valueBase64": "/w=="}]', NULL), """
        """('Mails', NULL, 'm', 0, '[]', NULL)"""
    )
    assert outbox.relay(*keyed).startswith("3 messages sent")
    a, b = outbox.entries()
    assert (a.key, a.content, a.expires_at_ms) == (b"a", b"paid", 4_102_444_800_000)
    assert a.headers == (("source", b"web"), ("none", None))
    assert (b.key, b.content, b.headers) == (b"b", None, (("id", b"\xff"),))
    outbox.psql("INSERT INTO {t} (message_key, content, delay) VALUES ('a', 'sent', 0)")
    assert outbox.relay(*keyed).startswith("1 messages sent")
    assert (outbox.entries()[0].content, outbox.entries()[0].headers) == (b"sent", ())


def test_a_time_to_live_is_in_ms(outbox):
    outbox.psql("INSERT INTO {t} (content, delay, time_to_live) VALUES ('x', 3600000, 1000)")
    outbox.relay(*ORDERS)
    (entry,) = outbox.entries()
    assert entry.expires_at_ms == entry.due_time_ms + 1000


def test_what_is_wrong_with_keys_headers_and_expiry_stands_in_the_exceptions(outbox):
    outbox.broker.create("Keyed", "FixedTime", slot_amount=1, keyed=True)
    outbox.psql(
        "INSERT INTO {t} (topic, message_key, content, delay, headers, time_to_live) VALUES "
        "('Keyed', NULL, '1', 0, NULL, NULL), ('Keyed', '', '2', 0, NULL, NULL), "
        "('Keyed', 'a', '3', 0, '{\"n\": 1}', NULL), ('Keyed', 'a', '4', 0, 'web', NULL), "
        "('Keyed', 'a', '5', 0, '[{\"value\": \"web\"}]', NULL), "
        "('Keyed', 'a', '6', 0, NULL, 0), ('Orders', 'a', '7', 0, NULL, NULL)"
    )
    assert outbox.relay(*ORDERS).endswith("7 refused")
    found = dict(outbox.psql("SELECT content, reason FROM {t}_exceptions"))
    for content, said in {
        "1": "key is None. Accepted: STRING or BINARY, not null; the topic Keyed is keyed",
        "2": "key is ''. Accepted: 1 to 1024 bytes",
        "3": """headers is '{"n": 1}'. Accepted: null, a JSON object of texts such as""",
        "4": "headers is 'web'. Accepted: null, a JSON object",
        "5": """headers is '[{"value": "web"}]'. Accepted: null, a JSON object""",
        "6": "timeToLive is 0. Accepted: null, or 1 to",
        "7": "key is 'a'. Accepted: null; the topic Orders is not keyed",
    }.items():
        assert said in found[content], found[content]


def test_the_messages_of_keyed_topics_need_no_content(trade):
    trade.broker.create("Orders", "FixedTime", slot_amount=1, keyed=True)
    trade.psql(
        "CREATE TABLE {t} (id INT PRIMARY KEY, message_key TEXT, fixed_time BIGINT, state TEXT); "
        "INSERT INTO {t} VALUES (1, 'a', 17, 'new'), (2, NULL, 17, 'new')"
    )
    assert trade.relay("--topic", "Orders").endswith("1 refused")
    assert [(entry.key, entry.content) for entry in trade.entries()] == [(b"a", None)]


def test_late_arrivals_are_found_behind_the_checkpoint(outbox):
    insert = "INSERT INTO {t} (content, fixed_time) VALUES ('%s', now() + interval '%s minutes')"
    outbox.psql(insert % ("first", 9))
    outbox.relay(*ORDERS)
    outbox.psql(insert % ("late", 5))
    assert outbox.relay(*ORDERS) == "1 messages sent, 1 of them late arrivals; 0 refused"


def test_one_that_commits_after_later_ones_were_sent_is_not_skipped(outbox):
    slow = subprocess.Popen(
        outbox.database.psql_command,
        env=outbox.database.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    insert = f"INSERT INTO {outbox.table} (content, fixed_time) VALUES ('slow', now())"
    slow.stdin.write(f"BEGIN; {insert} RETURNING id;\n")
    slow.stdin.flush()
    assert slow.stdout.readline() == "1\n"  # the lower id, written and not committed
    outbox.psql("INSERT INTO {t} (content, fixed_time) VALUES ('fast', now())")
    outbox.relay(*ORDERS)
    assert outbox.contents() == ["fast"]
    slow.communicate("COMMIT;\n", timeout=60)
    outbox.relay(*ORDERS)
    assert outbox.contents() == ["fast", "slow"]


def test_rounds_of_a_limit_load_the_earliest_first_and_move_the_checkpoint(outbox):
    outbox.psql(
        "INSERT INTO {t} (content, fixed_time) SELECT 'order ' || n, "
        "timestamptz '2026-01-01 00:00:00Z' - n * interval '1 s' FROM generate_series(1, 25) n"
    )
    assert outbox.relay(*ORDERS, "--limit", "10").startswith("25 messages sent")
    assert outbox.count("SELECT rounds FROM {t}_checkpoint") == 3
    assert outbox.count("SELECT sent FROM {t}_checkpoint") == 25


def test_what_is_sent_and_not_committed_is_found_again(outbox, monkeypatch):
    from rmq_spark.jobs.outbox.rounds import OutboxRelay

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    outbox.psql("INSERT INTO {t} (content, fixed_time) VALUES ('x', now())")
    with monkeypatch.context() as patched:
        patched.setattr(OutboxRelay, "_move", killed)
        with pytest.raises(Killed):
            outbox.relay(*ORDERS)
    assert outbox.contents() == ["x"]  # sent
    assert states(outbox) == {"new": "1"}  # and yet to be marked
    assert outbox.relay(*ORDERS).startswith("1 messages sent")
    assert outbox.contents() == ["x"]  # merged with the first


def test_what_the_business_recalls_before_it_is_marked_is_not_sent(outbox, monkeypatch):
    from rmq_spark.jobs.outbox.rounds import OutboxRelay

    outbox.psql(
        "INSERT INTO {t} (content, fixed_time) VALUES ('stays', now()), ('recalled', now()), "
        "('deleted', now())"
    )
    mark = OutboxRelay._mark

    def recalled_first(self, ids):
        outbox.psql(
            "UPDATE {t} SET state = 'recalled' WHERE content = 'recalled' AND state = 'new'"
        )
        outbox.psql("DELETE FROM {t} WHERE content = 'deleted'")
        return mark(self, ids)

    monkeypatch.setattr(OutboxRelay, "_mark", recalled_first)
    assert outbox.relay(*ORDERS).startswith("1 messages sent")
    assert outbox.contents() == ["stays"]
    assert states(outbox) == {"sent": "1", "recalled": "1"}


def test_a_second_relay_waits_for_the_first(outbox):
    outbox.psql("INSERT INTO {t} (content, fixed_time) VALUES ('x', now())")
    other = subprocess.Popen(
        outbox.database.psql_command,
        env=outbox.database.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    other.stdin.write(f"BEGIN; UPDATE {outbox.table}_checkpoint SET rounds = 7 RETURNING 1;\n")
    other.stdin.flush()
    assert other.stdout.readline() == "1\n"
    seen = []

    def let_it_go():
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not outbox.count(waiting):
            time.sleep(0.05)
        seen.append(outbox.contents())
        other.communicate("COMMIT;\n", timeout=60)

    first = threading.Thread(target=let_it_go)
    first.start()
    assert outbox.relay(*ORDERS).startswith("1 messages sent")
    first.join(60)
    assert seen == [[]]


def test_nothing_that_is_refused_stops_the_others(outbox):
    outbox.psql(
        "INSERT INTO {t} (content, fixed_time) VALUES "
        "('before Christ', '0044-03-15 00:00 BC'), ('far', '-infinity'), ('good', now())"
    )
    outbox.psql("ALTER TABLE {t} ALTER topic TYPE TEXT")
    outbox.psql(
        "INSERT INTO {t} (content, fixed_time, topic) VALUES ('x', now(), repeat('n', 5000))"
    )
    assert outbox.relay(*ORDERS) == "1 messages sent, 0 of them late arrivals; 3 refused"
    rows = outbox.psql("SELECT content, length(topic) FROM {t}_exceptions ORDER BY 1")
    assert rows == [["before Christ", "6"], ["far", "6"], ["x", "300"]]


def test_one_table_under_two_spellings_is_one_outbox(outbox):
    insert = "INSERT INTO {t} (content, fixed_time) VALUES ('%s', now())"
    outbox.psql(insert % "a")
    outbox.relay(*ORDERS)
    for spelling in (outbox.table.upper(), f"public.{outbox.table}"):
        outbox.psql(insert % spelling)
        told = outbox.job("relay_outbox", "--once", "--table", spelling, *ORDERS)
        assert told.startswith("1 messages sent")
    assert outbox.count("SELECT sent FROM {t}_checkpoint") == 3


def test_a_table_whose_name_is_alike_is_another(trade):
    table, alike = f"{trade.table}_1", f"{trade.table}x1"
    trade.psql(
        f"CREATE TABLE {table} (id INT, content TEXT, state TEXT, priority INT); "
        f"CREATE TABLE {alike} (id INT, content TEXT, state TEXT, fixed_time BIGINT); "
        f"INSERT INTO {table} VALUES (1, 'p', 'new', 17)"
    )
    made = ("--topic", "Jobs", "-o", "topicType=Priority", "-o", "slotAmount=1")
    told = trade.job("relay_outbox", "--once", "--table", table, *made)
    assert told.startswith("1 messages sent")


def test_two_that_make_the_tables_at_once_both_go_on(outbox, monkeypatch):
    columns = Connection.columns
    asked = []

    def not_there_yet(self, table):
        asked.append(table)
        return {} if asked.count(table) == 1 else columns(self, table)

    monkeypatch.setattr(Connection, "columns", not_there_yet)
    assert outbox.relay("--create-tables", *ORDERS).startswith("0 messages sent")


def test_a_row_without_an_id_is_told(trade):
    trade.psql("CREATE TABLE {t} (id INT, content TEXT, state TEXT)")
    trade.psql("INSERT INTO {t} VALUES (NULL, 'x', 'new')")
    with pytest.raises(JobFailed, match="a row whose id is null"):
        trade.relay("--topic", "Jobs", "-o", "topicType=Priority", "-o", "priority=17")


@pytest.mark.parametrize(
    "rows", ["(7, 'a', now()), (7, 'b', now())", "(7, 'a', now()), (7, 'b', NULL)"]
)
def test_ids_that_are_not_unique_lose_nothing(trade, rows):
    trade.psql("CREATE TABLE {t} (id INT, content TEXT, fixed_time TIMESTAMPTZ, state TEXT)")
    rows = rows.replace("NULL", "now() + interval '1 day'")
    trade.psql(f"INSERT INTO {{t}} SELECT *, 'new' FROM (VALUES {rows}) AS given")
    with pytest.raises(JobFailed, match="messages with the same id"):
        trade.relay(*ORDERS)
    assert states(trade) == {"new": "2"}


def test_a_checkpoint_without_its_row_is_told(outbox):
    outbox.psql("DELETE FROM {t}_checkpoint; INSERT INTO {t} (content) VALUES ('x')")
    with pytest.raises(JobFailed, match="0 rows instead of the one"):
        outbox.relay(*ORDERS)


def test_options_of_a_new_topic_are_for_that_of_the_option_alone(outbox):
    outbox.broker.create("Mails", "FixedTime", slot_amount=1)
    outbox.psql("INSERT INTO {t} (topic, content, fixed_time) VALUES ('Mails', 'm', now())")
    new = ("--topic", "Invoices", "-o", "topicType=FixedTime", "-o", "groups=billing,audit")
    assert outbox.relay(*new, "-o", "maxRetries=3", "-o", "retryBackoff=1s").startswith(
        "1 messages sent"
    )
    assert outbox.contents("Mails") == ["m"]


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://shop:sesame@127.0.0.1/shop",
        "jdbc:postgresql://shop:ses/ame@127.0.0.1/shop",
        "jdbc:oracle:thin:shop/sesame@//127.0.0.1:1521/shop",
        "jdbc:mysql://(host=127.0.0.1,user=shop,password=sesame)/shop",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_shown(trade, url):
    with pytest.raises(InvalidOption, match="RMQ_JDBC_PASSWORD") as failure:
        trade.relay("--url", url, *ORDERS)
    assert "ame" not in str(failure.value).replace("name", "")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (None, "There is no table"),
        ("CREATE TABLE {t} (id BIGINT, content TEXT)", "has no column state"),
        ("CREATE TABLE {t} (id UUID, content TEXT, state TEXT)", "is not a whole number"),
    ],
)
def test_a_table_that_is_none_is_told(trade, sql, told):
    if sql is not None:
        trade.psql(sql)
    with pytest.raises(JobFailed, match=told):
        trade.relay(*ORDERS)


def test_a_topic_that_is_not_there_is_told_before_anything_is_sent(trade):
    with pytest.raises(UnknownTopic):
        trade.relay("--create-tables", "--topic", "Orders")


def test_a_name_that_would_end_a_statement_is_refused(trade):
    with pytest.raises(InvalidOption, match="letters, digits and underscores"):
        trade.job("relay_outbox", "--once", "--table", "x; DROP TABLE y", *ORDERS)


def test_a_database_that_refuses_the_password_shows_none(trade, monkeypatch):
    monkeypatch.setenv("RMQ_JDBC_PASSWORD", "mistyped")
    with pytest.raises(Exception, match="authentication failed") as failure:
        trade.relay(*ORDERS)
    assert "mistyped" not in str(failure.value)
