"""Files, tables, a database and a stream into a topic: again, once, and exactly once."""

import pytest
from pyspark.errors import AnalysisException

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.jobs import send

SHAPE = (
    *("--select", "concat('order ', id) AS content, CAST(0 AS BIGINT) AS fixedTime"),
    *("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "slotAmount=4"),
)


def files(trade, *numbers, folder="in"):
    path = trade.folder / folder
    rows = trade.spark.createDataFrame([(number,) for number in numbers], "id INT")
    rows.write.mode("append").parquet(str(path))
    return ("--from", "parquet", "--path", path)


def accepted(trade):
    return trade.broker.queue("Orders").figures().counters["accepted"]


@pytest.mark.long
def test_files_are_sent_again_at_each_start(trade):
    source = files(trade, 1, 2, 3)
    trade.job("send", *source, *SHAPE, "--where", "id > 1")
    assert trade.contents() == ["order 2", "order 3"]
    trade.job("send", *source, *SHAPE)
    assert trade.contents() == ["order 1", "order 2", "order 3"]
    assert accepted(trade) == 5


def test_a_query_on_postgresql_is_sent(trade):
    trade.psql("CREATE TABLE {t} (id INT); INSERT INTO {t} SELECT generate_series(1, 20)")
    trade.job("send", "--from", "jdbc", "--table", trade.table, *SHAPE)
    assert len(trade.contents()) == 20


def test_a_table_of_the_catalog_and_lines_of_csv_are_sent(trade):
    trade.spark.range(2).createOrReplaceTempView("counted")
    trade.job("send", "--from", "table", "--path", "counted", *SHAPE)
    (trade.folder / "lines.csv").write_text("7\n8\n")
    csv = ("--from", "csv", "--path", trade.folder / "lines.csv", "--schema", "id INT")
    trade.job("send", *csv, *SHAPE)
    assert trade.contents() == ["order 0", "order 1", "order 7", "order 8"]


def test_a_stream_of_files_is_sent_exactly_once(trade):
    def send_stream():
        stream = ("--stream", "--once", "--checkpoint", trade.folder / "checkpoint")
        return trade.job("send", *source, "--schema", "id INT", *SHAPE, *stream)

    source = files(trade, 1, 2)
    assert send_stream() == "Sent."
    assert accepted(trade) == 2
    files(trade, 3)
    for _ in range(2):
        send_stream()
        assert trade.contents() == ["order 1", "order 2", "order 3"]
        assert accepted(trade) == 3


@pytest.fixture
def run(trade):
    trade.psql("CREATE TABLE {t} (id INT); INSERT INTO {t} VALUES (1), (2)")

    def run(name):
        lasting = ("--run", name, "--checkpoint", trade.folder / "checkpoint")
        return trade.job("send", "--from", "jdbc", "--table", trade.table, *SHAPE, *lasting)

    return run


def read_and_killed(run, name, monkeypatch):
    """A start that ends when the rows are kept, and before one is sent."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(send, "_stream", killed)
        with pytest.raises(KeyboardInterrupt):
            run(name)


def test_a_run_is_sent_once_however_often_it_is_started(trade, run):
    assert run("2026-11-22") == "2 rows sent"
    trade.psql("INSERT INTO {t} VALUES (3)")
    assert run("2026-11-22") == ("0 rows sent: the run 2026-11-22 has none, or was sent before")
    assert accepted(trade) == 2
    assert run("2026-11-23") == "3 rows sent"
    assert run("2026-11-23").startswith("0 rows sent")
    assert accepted(trade) == 5


def test_a_run_that_was_killed_is_finished_with_the_rows_that_it_had_read(trade, run, monkeypatch):
    read_and_killed(run, "monday", monkeypatch)
    trade.psql("DROP TABLE {t}")
    assert run("monday") == "2 rows sent"


def test_a_run_may_have_no_rows(trade, run):
    trade.psql("DELETE FROM {t}")
    assert run("sunday") == "0 rows sent: the run sunday has none, or was sent before"


def test_a_run_whose_rows_cannot_be_read_leaves_no_file(trade):
    """Failed before: each start left the folder into which it had begun to write."""
    source = files(trade, 1, 2)
    failing = ("--select", "raise_error('unreadable') AS content", "--topic", "Orders")
    with pytest.raises(Exception, match="unreadable"):
        trade.job(
            *("send", *source, *failing),
            *("--run", "monday", "--checkpoint", trade.folder / "checkpoint"),
        )
    assert list((trade.folder / "checkpoint").glob("*/*")) == []


def test_of_two_that_read_a_run_at_once_the_first_counts(trade, run, monkeypatch):
    has = send.Folder.has
    looked = []

    def another_comes_first(self, name):
        found = has(self, name)
        if not looked:
            looked.append(name)
            trade.psql("INSERT INTO {t} VALUES (3)")
            run("monday")
            trade.psql("INSERT INTO {t} VALUES (4)")
        return found

    monkeypatch.setattr(send.Folder, "has", another_comes_first)
    assert run("monday").startswith("0 rows sent")
    assert accepted(trade) == 3
    folders = [path.name for path in (trade.folder / "checkpoint" / "monday").iterdir()]
    assert sorted(folders) == ["rows", "sent"]


def test_a_run_that_is_not_done_is_not_sent_by_another(trade, run, monkeypatch):
    read_and_killed(run, "monday", monkeypatch)
    trade.psql("DELETE FROM {t} WHERE id = 1")
    other = ("--select", "'mail' AS content, 99 AS priority", "--topic", "Mails")
    made = ("-o", "topicType=Priority", "-o", "slotAmount=1")
    kept = ("--run", "mails", "--checkpoint", trade.folder / "checkpoint")
    source = ("--from", "jdbc", "--table", trade.table)
    assert trade.job("send", *source, *other, *made, *kept) == "1 rows sent"
    assert run("monday") == "2 rows sent"
    assert trade.contents("Mails") == ["mail"]


@pytest.mark.long
def test_a_run_with_a_row_that_is_refused_is_not_kept(trade):
    def run(name, priority):
        return trade.job(
            *("send", *files(trade, 1, folder=name), "--topic", "Jobs", "-o", "topicType=Priority"),
            *("--select", f"'job' AS content, {priority} AS priority"),
            *("--run", name, "--checkpoint", trade.folder / "checkpoint"),
        )

    with pytest.raises(InvalidMessage, match="priority is 3"):
        run("monday", 3)
    assert run("tuesday", 50) == "1 rows sent"
    assert run("monday", 60) == "2 rows sent"  # there is a second file by now


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--run", "../x", "--checkpoint", "c"), "of which the first is a letter or digit"),
        (("--run", "monday"), "need --checkpoint"),
        (("--stream",), "need --checkpoint"),
        (("--once",), "need --stream or --run"),
        (("--checkpoint", "c"), "need --stream or --run"),
    ],
)
def test_what_does_not_go_together_is_told(trade, arguments, told):
    with pytest.raises(InvalidOption, match=told):
        trade.job("send", "--from", "parquet", "--path", "p", *SHAPE, *arguments)


def test_a_row_that_the_topic_refuses_is_named(trade):
    with pytest.raises(Exception, match=r"content 'order 1'\): fixedTime is -5"):
        trade.job(
            *("send", *files(trade, 1), "--topic", "Orders", "-o", "topicType=FixedTime"),
            *("--select", "concat('order ', id) AS content, CAST(-5 AS BIGINT) AS fixedTime"),
        )


def test_keys_headers_and_expiry_are_sent(trade):
    files(trade, 1, 2)
    select = (
        "concat('order ', id) AS key, CASE id WHEN 1 THEN 'paid' END AS content, "
        "CAST(0 AS BIGINT) AS fixedTime, "
        "array(named_struct('key', 'source', 'value', CAST('web' AS BINARY))) AS headers, "
        "CASE id WHEN 1 THEN INTERVAL '1' HOUR END AS timeToLive, "
        "CASE id WHEN 2 THEN TIMESTAMP '2100-01-01 00:00:00Z' END AS expiresAt"
    )
    trade.job(
        *("send", "--from", "parquet", "--path", trade.folder / "in", "--select", select),
        *("--topic", "Orders", "-o", "topicType=FixedTime", "-o", "keyed=true"),
        *("--run", "today", "--checkpoint", trade.folder / "checkpoint"),
    )
    first, second = trade.entries()
    assert (first.key, first.content) == (b"order 1", b"paid")
    assert first.expires_at_ms == first.due_time_ms + 3_600_000
    assert (second.key, second.content) == (b"order 2", None)
    assert second.expires_at_ms == 4_102_444_800_000
    assert first.headers == second.headers == (("source", b"web"),)
    with pytest.raises(AnalysisException, match=r"column key is missing.*Orders is keyed"):
        trade.job("send", *files(trade, 3), *SHAPE[:4])
