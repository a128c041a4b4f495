"""Redis goes away, and comes back."""

from .site import running


def test_while_redis_is_gone_pages_say_so_and_they_recover(own_redis):
    with running(own_redis.url) as site:
        site.broker.create("Orders", "FixedTime", 2)
        assert "Orders" in site.page("/topics")
        own_redis.kill()
        site.console.changed()  # else the last look is shown for two more seconds
        for path in ("/topics", "/topics/Orders", "/topics/Orders/dead", "/consumers", "/server"):
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


def test_a_password_is_on_no_page(own_redis):
    own_redis.kill()
    url = own_redis.url.replace("redis://", "redis://anna:sesame@")
    with running(url) as site:
        text = site.page("/topics", 503)
    assert "sesame" not in text
