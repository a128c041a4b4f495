"""Redis goes away, and comes back."""

import threading
from urllib.parse import quote

import pytest

from rmq_spark.console.auth import ConsoleSettings
from rmq_spark.console.state import Console
from rmq_spark.errors import ServerUnavailable

from ..security.credentials import PREFIX, SECRET, permit
from .site import running
from .stocked import stock


def test_while_redis_is_gone_pages_say_so_and_they_recover(own_redis):
    with running(own_redis.url) as site:
        site.broker.create("Orders", "FixedTime", 2)
        assert "Orders" in site.page("/topics")
        own_redis.kill()
        site.console.changed()  # else the last look is shown for two more seconds
        for path in (
            "",
            "/topics",
            "/topics/Orders",
            "/topics/Orders/dead",
            "/consumers",
            "/server",
        ):
            assert "cannot be reached" in site.page(path, 503)
            assert "cannot be reached" in site.json(path, 503)["error"]
        assert "data-every" in site.page("/topics", 503)
        own_redis.start()  # empty: it kept nothing on disk
        assert "There are no topics yet" in site.page("/topics")
        site.broker.create("Orders", "FixedTime", 2)
        assert site.json("/topics/Orders")["topic"] == "Orders"


def test_a_console_that_starts_without_redis_shows_it_when_it_comes(own_redis):
    own_redis.kill()
    with running(own_redis.url) as site:
        assert "cannot be reached" in site.page("/topics", 503)
        own_redis.start()
        assert "There are no topics yet" in site.page("/topics")


def test_a_change_without_redis_leads_to_a_page_that_recovers(own_redis):
    """Failed before: the page that said so fetched the address of the form, for ever."""
    with running(own_redis.url, allow_changes=True) as site:
        site.broker.create("Orders", "FixedTime", 1)
        own_redis.kill()
        failed = site.post("/topics/Orders/pause", status=503)
        own_redis.start()
        again = site.page(str(failed.url))
    assert "data-every" in failed.text
    for text in (failed.text, again):
        assert "cannot be reached" in text
        assert "may have been made" in text


def test_the_end_does_not_wait_for_a_request_that_connects():
    """Failed before: a stop waited until all requests had tried to connect, one by one."""
    begun, go_on, waited = threading.Event(), threading.Event(), []

    def connect():
        begun.set()
        waited.append(go_on.wait(10))
        raise ServerUnavailable("away")

    console = Console(ConsoleSettings(), connect)

    def ask():
        with pytest.raises(ServerUnavailable):
            _ = console.broker

    asker = threading.Thread(target=ask)
    asker.start()
    assert begun.wait(60)
    console.close()
    go_on.set()
    asker.join()
    assert waited == [True]


def test_no_thread_of_the_console_keeps_a_program_from_its_end(site):
    """Failed before: requests that wait for Redis did, for minutes."""
    site.page("/topics")
    of_console = ("rmq-console", "AnyIO worker thread")
    found = {of.name: of.daemon for of in threading.enumerate() if of.name in of_console}
    assert found == dict.fromkeys(of_console, True)


def test_a_password_is_on_no_page(own_redis):
    own_redis.kill()
    url = own_redis.url.replace("redis://", "redis://anna:sesame@")
    with running(url) as site:
        text = site.page("/topics", 503)
    assert "sesame" not in text


def test_the_documented_user_of_redis_may_use_the_console(own_redis):
    """What it may not ask for is said to be missing."""
    permit(own_redis.url, "rmq", without="memory|usage")
    url = own_redis.url.replace("redis://", f"redis://rmq:{quote(SECRET, safe='')}@")
    with running(url, PREFIX, allow_changes=True) as site:
        stock(site.broker)
        for path in ("/topics", "/topics/Orders", "/topics/Alerts/dead", "/consumers"):
            site.page(path)
        listed = site.json("/topics/Alerts/messages?queue=dead")["messages"]
        named = site.json("/topics/Prices/messages?find=sku-1&by=name")["messages"]
        assert (len(listed), len(named)) == (20, 1)
        site.page(f"/topics/Prices/messages/{named[0]['ref']}")
        form = {"ref": [listed[0]["ref"]], "priority": "20"}
        assert "1 message requeued" in site.note("/topics/Alerts/requeue", form)
        shown = site.page("/server")
    assert "this Redis user may not run CONFIG GET and SLOWLOG GET" in shown
    assert "not permitted" in shown
    assert SECRET not in shown
