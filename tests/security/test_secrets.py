"""No password is shown: not by errors, logs, explain, event log, checkpoints, progress or repr."""

import logging
import socket
import subprocess
import traceback

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import InvalidOption, ServerUnsuitable
from rmq_spark.local.redis import free_port
from rmq_spark.redis.connection import parse_connection
from rmq_spark.spark.options import (
    parse_listener_options,
    parse_sink_options,
    parse_source_options,
)

from ..logs import logged
from ..waiting import wait_until
from .credentials import ADMIN, SECRET, WRONG, found_in, variants

pytestmark = pytest.mark.timeout(900)  # a Spark of its own, on a machine that may be busy

SUCCEEDED = {
    "write, password in the address": "written",
    "write, password in the environment": "written",
    "read, password in the address": 20,
    "rollback": 5,
    "each message": 3,
}
FAILED = {
    "wrong password, write": "refused the user or password",
    "wrong password, read": "refused the user or password",
    "wrong password, each_message": "refused the user or password",
    "server gone, read": "cannot be reached",
    "bad row": "fixedTime",
    "lost claim": "is gone",
}


def chain(error):
    """Everything an error and those behind it say, whether Python would print them or not."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), *traceback.format_tb(error.__traceback__)]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


@pytest.mark.long
@pytest.mark.parametrize("attempt", SUCCEEDED)
def test_with_the_password_the_attempt_succeeds(tried, attempt):
    assert tried.outcomes[attempt] == SUCCEEDED[attempt]


@pytest.mark.long
def test_with_the_password_batches_are_sent_exactly_once(tried):
    sent = tried.outcomes["exactly once"]
    assert isinstance(sent, int), sent
    assert sent >= 5
    assert sent % 5 == 0


@pytest.mark.long
@pytest.mark.parametrize("attempt", FAILED)
def test_the_attempt_fails_with_our_words_and_without_a_password(tried, attempt):
    error = tried.outcomes[attempt]
    assert FAILED[attempt] in str(error)
    assert found_in(error, SECRET, WRONG, ADMIN) == []


@pytest.mark.long
def test_nothing_that_spark_prints_logs_or_writes_holds_a_password(tried):
    leaks = {
        name: found
        for name, text in tried.shown.items()
        if (found := found_in(text, SECRET, WRONG, ADMIN))
    }
    assert leaks == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "witness"),
    [
        ("stdout", "*********(redacted)"),  # explain
        ("stdout", "numInputRows"),  # progress
        ("stderr", "LeaseLost"),  # errors of workers, in the driver's log
        ("events/", "SparkListenerSQLExecutionStart"),
        ("events/", "spark.executorEnv.RMQ_REDIS_URL"),
        ("checkpoint-orders/offsets/", "consumer"),
        ("checkpoint-orders/commits/", "nextBatchWatermarkMs"),
        ("checkpoint-orders/metadata", "id"),
        ("checkpoint-once/offsets/", "timestamp"),
    ],
)
def test_what_was_searched_holds_what_it_should(tried, place, witness):
    assert any(witness in text for name, text in tried.shown.items() if name.startswith(place))


def test_a_search_finds_a_password_in_each_of_its_forms():
    for form in variants(SECRET):
        assert found_in(f"... {form} ...", SECRET)
    assert found_in("nothing of it", SECRET) == []


@pytest.fixture
def without(redis_executable, tmp_path):
    """Starts a server that does not know a command, and returns its address."""
    started = []

    def start(command):
        port = free_port()
        settings = tmp_path / "redis.conf"
        settings.write_text(f'port {port}\nrename-command {command} ""\nsave ""\ndir {tmp_path}\n')
        started.append(
            subprocess.Popen([redis_executable, str(settings)], stdout=subprocess.DEVNULL)
        )
        wait_until(lambda: is_open(port), "Redis to be there")
        return f"redis://127.0.0.1:{port}/0"

    yield start
    for process in started:
        process.kill()
        process.wait()


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(("command", "protocol"), [("AUTH", "2"), ("HELLO", "3")])
def test_a_server_that_does_not_know_the_command_quotes_the_password_and_we_do_not(
    without, caplog, command, protocol
):
    """As a Redis before 6, or one behind a proxy: its error lists what it was sent."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ServerUnsuitable) as raised:
        connect(f"{without(command)}?protocol={protocol}", password=SECRET, patience_s=2)
    assert f"unknown command '{command}'" in str(raised.value).replace("`", "'")
    assert "Use Redis 6.2 or later" in str(raised.value)
    assert found_in(chain(raised.value) + logged(caplog), SECRET) == []


def test_no_repr_of_parsed_options_shows_a_password():
    given = {"redis.password": SECRET, "redis.sslPassword": WRONG, "topic": "T"}
    given["redis.url"] = f"rediss://me:{ADMIN[:3]}@h/0?password={ADMIN[:3]}"
    parsers = (parse_source_options, parse_sink_options)
    shown = [parse(given) for parse in parsers]
    del given["topic"]
    shown.append(parse_listener_options(given))
    shown += [options.connection for options in shown]
    text = "".join(f"{thing} {thing!r} {[thing]} {vars(thing)}" for thing in shown[:3])
    text += "".join(f"{thing} {thing!r} {[thing]}" for thing in shown[3:])
    assert "rediss://h/0" in text
    assert found_in(text, SECRET, WRONG) == []
    assert ADMIN[:3] not in text


@pytest.mark.parametrize("name", ["password", "sslPassword"])
def test_an_unknown_option_beside_a_password_does_not_show_it(name):
    with pytest.raises(InvalidOption) as raised:
        parse_connection({name: SECRET, "pasword": WRONG})
    assert found_in(chain(raised.value), SECRET, WRONG) == []
