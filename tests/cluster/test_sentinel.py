"""A master that Sentinels name: found, and found again after a failover."""

import pytest

import rmq_spark
from rmq_spark.cli.doctor import check_redis
from rmq_spark.cli.session import Session
from rmq_spark.errors import InvalidOption, ServerRefused, ServerUnavailable
from rmq_spark.inspect.checks import FAIL
from rmq_spark.redis.connection import parse_connection

from ..servers import NOBODYS_PORT
from ..waiting import wait_until
from .sentinels import NAME, Sentinels
from .traffic import Traffic

SECRET = "s3cret-of-sentinels"


@pytest.fixture
def sentinels(executable):
    with Sentinels(executable, SECRET) as started:
        yield started


@pytest.mark.long
def test_a_failover_loses_nothing_that_the_replica_has_confirmed(sentinels):
    with Traffic(None, 8, **sentinels.options, minReplicas="1") as traffic:
        sentinels.master.kill()
        wait_until(lambda: sentinels.role(sentinels.replica) == "master", "the replica takes over")
        # The old master comes back empty: a Sentinel that did not know yet would lead there.
        wait_until(lambda: sentinels.all_name(sentinels.replica), "all Sentinels have heard of it")
        sentinels.master.start()
        traffic.go_on()
    assert traffic.lost == set()


def test_a_wrong_password_or_name_is_told_without_the_secret(sentinels):
    wrong = {**sentinels.options, "password": "wrong"}
    with pytest.raises(ServerRefused) as refused:
        rmq_spark.connect(**wrong, patience_s=0.5)
    assert "refused the user or password" in str(refused.value)
    nameless = {**sentinels.options, "sentinelMaster": "nobody"}
    with pytest.raises(ServerUnavailable, match=r"nobody of the Sentinels 127\.0\.0\.1") as lost:
        rmq_spark.connect(**nameless, patience_s=0.5)
    unheard = {**sentinels.options, "sentinelPassword": "wrong"}
    with pytest.raises(ServerUnavailable) as unheard_of:
        rmq_spark.connect(**unheard, patience_s=0.5)
    for error in (refused, lost, unheard_of):
        assert SECRET not in str(error.value)
        assert "wrong" not in str(error.value)


def test_the_address_names_the_sentinels_and_no_secret():
    options = parse_connection(
        {"sentinels": "a,b:1", "sentinelMaster": NAME, "sentinelPassword": SECRET}
    )
    assert options.address == "mymaster of the Sentinels a:26379,b:1"
    assert SECRET not in repr(options)


def test_sentinels_that_are_away_are_named_with_their_options():
    """Failed before: with Sentinels, nothing reads the address that it named."""
    given = {"redis.sentinels": f"127.0.0.1:{NOBODYS_PORT}", "redis.sentinelMaster": NAME}
    (found,) = check_redis(Session(given))
    assert (found.state, "RMQ_REDIS_URL" in found.remedy) == (FAIL, False)


def test_a_master_that_is_away_is_named_with_the_options_of_its_sentinels(sentinels):
    """Failed before, in the same way."""
    with rmq_spark.connect(**sentinels.options, patience_s=0.2) as broker:
        sentinels.master.close()
        with pytest.raises(ServerUnavailable) as raised:
            broker.topics()
    assert "Check that sentinels and sentinelMaster are right" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sentinels": "a:1"}, "^sentinels needs sentinelMaster"),
        ({"sentinelMaster": "m"}, "^sentinelMaster needs sentinels"),
        ({"sentinels": "a:x", "sentinelMaster": "m"}, "^sentinels is not accepted"),
        ({"sentinels": "a,,b", "sentinelMaster": "m"}, "^sentinels is not accepted"),
        ({"sentinels": "--no-spark", "sentinelMaster": "m"}, "^sentinels is not accepted"),
        ({"sentinels": "u:p@a", "sentinelMaster": "m"}, "^sentinels is not accepted"),
        ({"sentinels": "a", "sentinelMaster": "m", "url": "redis://h"}, "be used with url"),
        ({"sentinels": "a", "sentinelMaster": "m", "cluster": "true"}, "with cluster=true"),
    ],
)
def test_options_of_sentinels_are_checked(options, text):
    with pytest.raises(InvalidOption, match=text) as refused:
        parse_connection(options)
    assert "u:p" not in str(refused.value)
