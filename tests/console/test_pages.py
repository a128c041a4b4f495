"""What each page shows of a real Redis, as HTML and as JSON."""

import time
from urllib.parse import quote

import pytest
import redis

from rmq_spark.client import Message
from rmq_spark.console import state
from rmq_spark.console.app import PAGES
from rmq_spark.inspect import browse
from rmq_spark.inspect.checks import FAIL, OK
from rmq_spark.ownership.zookeeper import parse_ensemble
from rmq_spark.topics.keys import topics_key
from rmq_spark.topics.reasons import class_of

from ..cli.running import bury
from ..security.credentials import PREFIX, SECRET, permit
from ..waiting import wait_until
from .site import running
from .stocked import CONTROLS, HTML, LARGE, NOT_UTF8

READABLE = [path for path, _, _ in PAGES if "{" not in path]
OF_A_TOPIC = ["", "/messages", "/messages?queue=prepare", "/messages?queue=retry", "/dead"]


@pytest.mark.parametrize("path", READABLE)
def test_every_page_answers_on_an_empty_database(site, path):
    assert "<h1>" in site.page(path)
    assert site.json(path)


@pytest.mark.parametrize("topic", ["Orders", "Replan", "Alerts", "Prices", "Idle"])
@pytest.mark.parametrize("path", OF_A_TOPIC)
def test_every_page_of_a_topic_answers(stocked, topic, path):
    assert f"<h1>{topic}</h1>" in stocked.page(f"/topics/{topic}{path}")
    assert stocked.json(f"/topics/{topic}{path}")["topic"] == topic


def test_the_topics_have_the_figures_of_rmq_top(stocked):
    found = {(one["topic"], one["group"]): one for one in stocked.json("/topics")["topics"]}
    assert set(found) >= {("Orders", "audit"), ("Orders", "default"), ("Alerts", "default")}
    alerts, replan = found["Alerts", "default"], found["Replan", "default"]
    assert (alerts["dead"], alerts["due"], alerts["topicType"]) == (20, 10, "Priority")
    assert (replan["prepared"], replan["retry"]) == (15, 4)
    assert found["Orders", "default"]["warnings"] == ["nobody reads"]
    assert [seen["consumer"] for seen in alerts["consumers"]] in (["pager"], [])


def test_a_hold_is_shown_until_it_ends(site):
    site.broker.create("Orders", "FixedTime", 1)
    site.broker.queue("Orders").send(["m"], fixed_time=1)
    site.broker.hold("Orders", "1h")
    [of_list], of_topic = site.json("/topics")["topics"], site.json("/topics/Orders")
    for found in (of_list, of_topic):
        assert any(one.startswith("held until 20") for one in found["warnings"])


def test_of_very_many_consumers_a_page_lists_the_last(site):
    site.broker.create("Orders", "FixedTime", 1)
    queue = site.broker.queue("Orders")
    known = [text for name in range(203) for text in (f"pod-{name}", f"1 0 0 0 {name}")]
    queue.server.command("HSET", queue.keys.consumers(0), *known)
    for path in ("/consumers", "/topics/Orders"):
        page = site.page(path)
        assert ("pod-202<" in page, "pod-2<" in page) == (True, False)
        assert "3 more are not shown." in page


def test_topics_are_searched_and_sorted(stocked):
    assert {one["topic"] for one in stocked.json("/topics?q=ORD")["topics"]} == {"Orders"}
    by_dead = [one["dead"] for one in stocked.json("/topics?sort=dead")["topics"]]
    assert by_dead == sorted(by_dead, reverse=True)
    names = [one["topic"] for one in stocked.json("/topics?sort=topic&order=desc")["topics"]]
    assert names == sorted(names, reverse=True)
    assert stocked.json("/topics?sort=nonsense")["sort"] == "topic"


def test_the_topics_page_has_the_warnings_of_doctor(stocked):
    assert {one["what"] for one in stocked.json("/topics")["findings"]} >= {"Redis memory"}


@pytest.mark.parametrize("without", ["", "hgetall", "hrandfield"])
def test_who_may_only_look_lacks_only_what_looking_needs(own_redis, without):
    """Failed before: a console without changes asked for the permission to change queues."""
    permit(own_redis.url, "rmq-reader", without=without)
    url = own_redis.url.replace("://", f"://rmq-reader:{quote(SECRET, safe='')}@")
    for allow_changes in (False, True):
        with running(url, PREFIX, allow_changes=allow_changes) as site:
            (user,) = [one for one in site.console.findings() if one.what == "Redis user"]
            if not without and not allow_changes:
                assert (user.state, user.seen) == (OK, "may look at queues")
            else:
                assert user.state == FAIL
                assert (without.upper() in user.seen, "HDEL" in user.seen) == (True, allow_changes)


def test_rates_come_from_two_looks(site):
    site.broker.create("Orders", "FixedTime", 1)
    site.json("/topics")
    site.broker.queue("Orders").send([f"{number}" for number in range(50)], fixed_time=1)
    until = time.monotonic() + 30
    while site.json("/topics")["topics"][0]["inPerSecond"] == 0:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert [one for one in site.json("/topics")["topics"][0]["line"] if one["inPerSecond"] > 0]


def test_a_topic_shows_what_falls_due_when(stocked):
    shown = stocked.json("/topics/Orders?span=1h")
    assert sum(bar["messages"] for bar in shown["bars"]) == 400
    assert shown["bars"][0]["dueTimeFrom"] is None
    assert shown["bars"][-1]["dueTimeUntil"] is None
    assert len(shown["bars"]) > 3
    assert shown["mergedShare"] == pytest.approx(80 / 480, abs=0.001)
    assert sum(bar["messages"] for bar in stocked.json("/topics/Alerts")["bars"]) == 10


def test_a_topic_shows_its_slots_and_who_holds_them(stocked):
    shown = stocked.json("/topics/Replan")
    assert sum(slot["prepared"] for slot in shown["slots"]) == 15
    assert {name for slot in shown["slots"] for name in slot["holders"]} == {"planner-2"}
    holder = next(one for one in shown["consumers"] if one["consumer"] == "planner-2")
    assert (holder["messages"], holder["lastBatch"], holder["committedBatch"]) == (15, 1, 0)
    assert holder["started"] <= holder["holdsSince"] < holder["leaseEnds"]
    assert 'class="strip"' in stocked.page("/topics/Replan")


def test_a_listener_that_has_ended_has_committed_no_more_than_it_claimed(site):
    """Failed before: one batch more."""
    site.broker.create("Orders", "FixedTime", 1)
    site.broker.queue("Orders").send(["m"], fixed_time=1)
    with site.broker.listen("Orders", "billing", print) as listener:
        wait_until(lambda: listener.succeeded, "the message")
    [shown] = site.json("/topics/Orders")["consumers"]
    assert shown["lastBatch"] == shown["committedBatch"] > 0


def test_a_strip_of_many_slots_sums_them_up(site):
    site.broker.create("Wide", "FixedTime", 1024)
    site.broker.queue("Wide").send([f"{number}" for number in range(3000)], fixed_time=1)
    assert len(site.json("/topics/Wide")["slots"]) == 1024
    assert 64 <= site.page("/topics/Wide").count("<li ") <= 128


def test_messages_come_page_by_page(stocked):
    path, found = "/topics/Orders/messages?limit=150", []
    after = ""
    while after is not None:
        shown = stocked.json(f"{path}&after={after}")
        found += [one["preview"] for one in shown["messages"]]
        after = shown["next"]
    assert len(found) == len(set(found)) == 400


@pytest.mark.parametrize(
    ("topic", "queue", "how_many"),
    [("Replan", "prepare", 15), ("Replan", "retry", 4), ("Alerts", "store", 10)],
)
def test_other_queues_come_page_by_page(stocked, topic, queue, how_many):
    found, after = [], ""
    while after is not None:
        shown = stocked.json(f"/topics/{topic}/messages?queue={queue}&limit=4&after={after}")
        found += [one["preview"] for one in shown["messages"]]
        after = shown["next"]
    assert len(found) == len(set(found)) == how_many


def test_messages_are_searched_by_prefix_and_by_name(stocked):
    prefix = stocked.json('/topics/Orders/messages?find={"order": 39')
    assert len(prefix["messages"]) == 11
    assert prefix["looked"] == 400
    content = '{"order": 7, "customer": "customer-7"}'
    named = stocked.json(f"/topics/Orders/messages?by=name&find={content}")
    assert [one["preview"] for one in named["messages"]] == [content]
    keyed = stocked.json("/topics/Prices/messages?by=name&find=sku-1")
    assert [one["keyPreview"] for one in keyed["messages"]] == ["sku-1"]


def test_an_exact_search_heeds_slot_reason_and_limit(site):
    """Failed before: it listed all copies in all slots at once."""
    site.broker.create("Orders", "FixedTime", 4, max_retries=0)
    queue = site.broker.queue("Orders")
    bases = {queue.definition.slot_of(basis): basis for basis in map(str, range(50))}
    queue.send([Message("x", slot_basis=basis, fixed_time=1) for basis in bases.values()])
    with site.broker.consumer("Orders", "billing") as consumer:
        batch = consumer.poll(4)
        for one in batch:
            batch.rollback([one], reason="Broken: x" if one.slot else "lease ran out")
    path = "/topics/Orders/messages?queue=dead&by=name&find=x"
    assert _slots(site.json(path)) == [0, 1, 2, 3]
    assert _slots(site.json(f"{path}&slot=2")) == [2]
    assert _slots(site.json(f"{path}&reason=Broken")) == [1, 2, 3]
    found, after = [], ""
    while after is not None:
        shown = site.json(f"{path}&reason=Broken&limit=2&after={after}")
        found.append(_slots(shown))
        after = shown["next"]
    assert found == [[1, 2], [3]]


def _slots(shown):
    return [one["slot"] for one in shown["messages"]]


def test_a_page_ends_where_its_messages_would_not_be_remembered(new_site, monkeypatch):
    """Failed before: with large contents, the first links of a page were dead at once."""
    for bound in (browse, "BYTES_A_LOOK"), (state, "BYTES_REMEMBERED"):
        monkeypatch.setattr(*bound, getattr(*bound) // 1024)
    site = new_site()
    site.broker.create("Orders", "FixedTime", 1)
    queue = site.broker.queue("Orders")
    large = [5, 10, 15, 15, 15, 15, 65]
    for at, size in enumerate(large):
        queue.send([str(at).encode().ljust(size * 2**10, b"x")], fixed_time=at + 1)
    found, after = [], ""
    while after is not None:
        shown = site.json(f"/topics/Orders/messages?after={after}")
        for one in shown["messages"]:
            site.page(f"/topics/Orders/messages/{one['ref']}")
        found.append([one["bytes"] >> 10 for one in shown["messages"]])
        after = shown["next"]
    assert found == [[5, 10], [15], [15], [15], [15], [65]]


def test_a_search_says_how_far_it_looked_and_goes_on(site, monkeypatch):
    monkeypatch.setattr("rmq_spark.inspect.browse.ENTRIES_A_SEARCH", 100)
    site.broker.create("Orders", "FixedTime", 1)
    site.broker.queue("Orders").send([f"{n:03}" for n in range(250)], fixed_time=1)
    found, looks, after = [], [], ""
    while after is not None:
        shown = site.json(f"/topics/Orders/messages?find=24&after={after}")
        found += [one["preview"] for one in shown["messages"]]
        looks.append(shown["looked"])
        after = shown["next"]
    assert (looks, found) == ([100, 100, 50], [f"24{n}" for n in range(10)])


def test_one_message_shows_all_that_it_carries(stocked):
    listed = stocked.json("/topics/Prices/messages")["messages"]
    ref = next(one["ref"] for one in listed if one["keyPreview"] == "sku-1")
    shown = stocked.json(f"/topics/Prices/messages/{ref}")
    assert shown["message"]["content"] == '{"price": 12}'
    assert shown["headersShown"][0] == {"name": "trace", "value": "of-4bf9"}
    assert shown["shown"] == {"form": "JSON", "text": '{\n  "price": 12\n}', "cut": False}
    assert "sku-1" in stocked.page(f"/topics/Prices/messages/{ref}")


def test_a_held_message_shows_its_consumer(stocked):
    held = stocked.json("/topics/Replan/messages?queue=prepare")["messages"][3]
    shown = stocked.json(f"/topics/Replan/messages/{held['ref']}?queue=prepare")
    assert shown["message"]["consumer"] == "planner-2"
    assert shown["shown"]["form"] == "JSON"


def test_a_message_that_is_gone_is_said_to_be_gone(site):
    queue = _one_message(site, "x")
    ref = site.json("/topics/Orders/messages")["messages"][0]["ref"]
    queue.cancel(["x"])
    assert "not in this queue any more" in site.page(f"/topics/Orders/messages/{ref}", 404)
    assert "not in this queue" in site.page("/topics/Orders/messages/unknown", 404)
    assert "Begin at the first page" in site.page("/topics/Orders/messages?after=unknown", 404)


def _one_message(site, content):
    site.broker.create("Orders", "FixedTime", 1)
    queue = site.broker.queue("Orders")
    queue.send([Message(content, fixed_time=1)])
    return queue


@pytest.mark.parametrize("content", [HTML, CONTROLS, LARGE, NOT_UTF8, b""])
def test_any_content_is_shown_safely(site, content):
    _one_message(site, content)
    listed = site.page("/topics/Orders/messages")
    ref = site.json("/topics/Orders/messages")["messages"][0]["ref"]
    shown = site.page(f"/topics/Orders/messages/{ref}")
    for text in (listed, shown):
        assert "<script>document" not in text
        assert "<b>bold" not in text
        assert not {"\x00", "\x07", "\u202e"} & set(text)
        assert len(text) < 150_000
    if content == LARGE:
        assert "10.0 MiB" in listed
        assert "only the beginning" in shown
    if content == NOT_UTF8:
        assert "ff fe 00 20" in shown
        assert site.json(f"/topics/Orders/messages/{ref}")["message"]["contentBase64"]


def test_a_long_text_that_is_cut_within_a_character_is_a_text(site):
    _one_message(site, "x" + "ä" * 40_000)
    ref = site.json("/topics/Orders/messages")["messages"][0]["ref"]
    shown = site.json(f"/topics/Orders/messages/{ref}")["shown"]
    assert (shown["form"], shown["cut"], shown["text"][:3]) == ("text", True, "xää")


def test_the_dead_are_grouped_by_reason(stocked):
    shown = stocked.json("/topics/Alerts/dead")
    assert [(one["reason"], one["messages"]) for one in shown["reasons"]] == [
        ("ConnectionError", 12),
        ("ValueError", 6),
        ("none", 2),
    ]
    assert shown["diedEver"] == {"ConnectionError": 12, "ValueError": 6, "none": 2}
    of_one = stocked.json("/topics/Alerts/messages?queue=dead&reason=ValueError")["messages"]
    assert {one["reason"] for one in of_one} == {"ValueError: unknown <b>receiver</b> 17"}
    assert "&lt;b&gt;receiver" in stocked.page("/topics/Alerts/dead")


def test_texts_of_others_are_escaped_on_pages_and_in_json(site):
    evil = "ValueError: \x1b[2J\x9b31m\u202etxt.exe\x7f"
    escaped = r"ValueError: \x1b[2J\x9b31m\u202etxt.exe\x7f"
    site.broker.create("Orders", "FixedTime", 1)
    queue = site.broker.queue("Orders")
    queue.send([b"m"], fixed_time=10**13, headers=[(evil, b"v")])
    reason = evil.encode()
    death = b"%s %d %s" % (evil[12:].encode(), len(reason), reason)
    site.broker.server.client.zadd(queue.keys.dead(0), {"d": 1000})
    site.broker.server.client.hset(queue.keys.deaths(0), "d", death)
    (listed,) = site.json("/topics/Orders/messages?queue=dead")["messages"]
    assert listed["reason"] == evil
    (waiting,) = site.json("/topics/Orders/messages")["messages"]
    for path in (
        "/topics/Orders/dead",
        "/topics/Orders/messages?queue=dead",
        f"/topics/Orders/messages/{listed['ref']}?queue=dead",
        f"/topics/Orders/messages/{waiting['ref']}",
    ):
        page = site.page(path)
        assert escaped in page, path
        assert all(c.isprintable() or c in "\n\t" for c in page), path
        assert site.client.get(f"/api{path}").text.isprintable()


@pytest.mark.parametrize(
    "reason",
    ["", "ValueError: x", "a.b.C", "no class: here", "given back", "lease ran out", "7: x"],
)
def test_reasons_are_classed_as_the_counters_of_redis_class_them(slot, reason):
    slot.put_due([b"x"])
    slot.broker.alter(slot.queue.definition.name, max_retries=0)
    queue = slot.broker.queue(slot.queue.definition.name)
    with slot.broker.consumer(queue.definition.name, "a") as consumer:
        batch = consumer.poll(1)
        batch.rollback(list(batch), reason=reason)
        batch.commit()
    assert list(queue.figures().deaths) == [class_of(reason)]


def test_consumers_show_their_backlog(stocked):
    found = {one["consumer"]: one for one in stocked.json("/consumers")["consumers"]}
    assert set(found) == {"pager", "planner", "planner-2"}
    assert found["pager"]["due"] == 10
    assert {one["topic"] for one in stocked.json("/consumers")["unread"]} >= {"Orders"}


def test_zookeeper_shows_who_owns_the_slots(new_site, zookeeper, root):
    ensemble = {"hosts": zookeeper.hosts, "root": root}
    site = new_site(ensemble=parse_ensemble(ensemble))
    site.broker.create("Orders", "FixedTime", 8, exclusive=True)
    with site.broker.consumer("Orders", "billing", zookeeper=ensemble) as consumer:
        until = time.monotonic() + 60
        while sum(len(m["owned"]) for m in _members(site)) < 8:
            consumer.poll(1, wait=0)
            assert time.monotonic() < until
        member = _members(site)[0]
        slots = site.json("/topics/Orders")["slots"]
        assert {slot["owner"] for slot in slots} == {member["name"]}
        assert f"owned by {member['name']}" in site.page("/topics/Orders")
    assert (member["consumer"], member["assigned"]) == ("billing", list(range(8)))
    assert "billing" in site.page("/consumers")


def _members(site):
    return site.json("/consumers")["zookeeper"]["members"]


def test_a_zookeeper_that_is_gone_is_an_error_on_its_page(new_site):
    ensemble = parse_ensemble({"hosts": "127.0.0.1:1", "sessionTimeout": "2s"})
    site = new_site(ensemble=ensemble)
    site.broker.create("Orders", "FixedTime", 1, exclusive=True)
    assert "did not answer" in site.page("/consumers")


def test_the_server_page_shows_memory_and_slow_scripts(new_site, own_redis):
    site = new_site(url=own_redis.url)
    _one_message(site, "x" * 1000)
    site.broker.server.client.config_set("slowlog-log-slower-than", 0)
    site.broker.queue("Orders").figures()
    shown = site.json("/server")
    assert shown["memory"][0]["bytes"] > 1000
    assert "script figures" in {one["call"] for one in shown["nodes"][0]["slow"]}
    assert "x" * 1000 not in site.page("/server")


def test_short_messages_that_are_due_first_do_not_hide_the_memory_of_long_ones(new_site, own_redis):
    """Failed before: a tenth of it was shown."""
    site = new_site(url=own_redis.url)
    site.broker.create("Orders", "FixedTime", 1)
    queue = site.broker.queue("Orders")
    queue.send([f"short {n}" for n in range(100)], fixed_time=1)
    queue.send([f"{n:05d} {'x' * 900}" for n in range(2000)], fixed_time=2)
    takes = site.broker.server.client.memory_usage(queue.keys.store(0), samples=0)
    assert 0.8 < site.json("/server")["memory"][0]["bytes"] / takes < 1.3


def test_the_server_page_says_what_is_on_disk(new_site, own_redis):
    """Failed before: a server that keeps nothing had snapshots, the last one at its start."""
    permit(own_redis.url, "rmq", prefix="")
    address = own_redis.url.replace("://", f"://rmq:{quote(SECRET, safe='')}@")
    site, user = new_site(url=own_redis.url), new_site(url=address)

    def on_disk(of):
        (node,) = of.json("/server")["nodes"]
        return node["onDisk"], node["lastSaved"] is not None

    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("save", "")
        assert (on_disk(site), on_disk(user)) == (("nothing", False), (None, False))
        assert "no snapshot since its start" in site.page("/server")
        admin.config_set("save", "3600 1")
        assert (on_disk(site), on_disk(user)) == (("snapshots", False), (None, False))
        wait_until(lambda: admin.info("server")["uptime_in_seconds"] > 2, "two seconds")
        admin.save()
        assert on_disk(site) == on_disk(user) == ("snapshots", True)
        admin.config_set("appendonly", "yes")
        assert on_disk(user)[0] == "append only"


def test_while_no_page_is_open_redis_is_asked_nothing(new_site, own_redis):
    site = new_site(url=own_redis.url)
    site.page("/topics")
    client = site.broker.server.client
    before = client.info("stats")["total_commands_processed"]
    time.sleep(5)
    asked = client.info("stats")["total_commands_processed"] - before
    assert asked <= 2  # the question itself, and the PING before it on a connection that was idle


def test_no_page_looks_through_all_keys(new_site, own_redis):
    """Others may have very many keys in the same database."""
    site = new_site(url=own_redis.url)
    _one_message(site, "x")
    for path in READABLE:
        site.page(path)
    for path in OF_A_TOPIC:
        site.page(f"/topics/Orders{path}")
    used = site.broker.server.client.info("commandstats")
    assert "cmdstat_evalsha" in used
    assert {"cmdstat_scan", "cmdstat_keys", "cmdstat_hscan", "cmdstat_zscan"} & set(used) == set()


def test_a_group_that_cannot_be_read_is_named_and_the_others_are_shown(site):
    site.broker.create("Broken", "FixedTime", 1)
    _one_message(site, "x")
    queue = site.broker.queue("Broken")
    site.broker.server.client.hset(queue.keys.claims(0), "a:1:0", "0 of an old version")
    site.broker.server.client.hset(topics_key(site.broker.key_prefix), "Later", "{}")
    shown = site.json("/topics")
    assert {(one["topic"], one["group"]) for one in shown["unreadable"]} == {
        ("Broken", "default"),
        ("Later", "(all)"),
    }
    assert [one["topic"] for one in shown["topics"]] == ["Orders"]
    assert "another version of rmq-spark" in site.page("/topics")


def test_a_topic_that_is_deleted_under_its_page_is_not_there(site):
    _one_message(site, "x")
    assert "Orders" in site.page("/topics/Orders")
    site.broker.delete("Orders")
    for path in OF_A_TOPIC:
        assert "does not exist" in site.page(f"/topics/Orders{path}", 404)
        assert "does not exist" in site.json(f"/topics/Orders{path}", 404)["error"]


@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("/topics/Orders?group=none", "default"),
        ("/topics/Orders?span=long", "duration"),
        ("/topics/Orders/messages?queue=left", "store, prepare, retry, dead"),
        ("/topics/Orders/messages?slot=9", "0 to 0"),
        ("/topics/Orders/messages?slot=-1", "0 to 0"),
        ("/topics/Orders/messages?limit=0", "1 to 500"),
        ("/topics/Orders/messages?limit=0000000500000", "1 to 500"),
        ("/topics/%22onload=x", "1 to 200"),
    ],
)
def test_bad_parameters_are_told(site, path, accepted):
    _one_message(site, "x")
    assert accepted in site.page(path, 400)


def test_an_unknown_page_is_not_there(site):
    assert "Not there" in site.page("/nonsense", 404)


def test_contents_can_be_hidden(new_site, stocked_prefix):
    site = new_site(stocked_prefix, hide_contents=True)
    listed = [
        *(("Orders", one) for one in site.json("/topics/Orders/messages")["messages"]),
        *(("Prices", one) for one in site.json("/topics/Prices/messages")["messages"]),
    ]
    paths = [f"/topics/{topic}/messages/{one['ref']}" for topic, one in listed[:3] + listed[-2:]]
    paths += ["/topics/Orders/messages", "/topics/Prices/messages", "/topics/Alerts/dead"]
    paths += ["/topics/Alerts/messages?queue=dead", "/topics/Replan/messages?queue=prepare"]
    for path in paths:
        for text in (site.page(path), site.client.get(f"/api{path}").text):
            for secret in (
                "customer-",
                "sku-",
                "price&#34;",
                "of-4bf9",
                "N1AA",
                "pager does",
                "17</",
            ):
                assert secret not in text, path
    assert "not accepted with --hide-contents" in site.page("/topics/Orders/messages?find=x", 400)


def test_dead_messages_of_an_earlier_version_have_no_reason(site):
    site.broker.create("Orders", "FixedTime", 1)
    bury(site.broker.queue("Orders"), b"old")
    assert site.json("/topics/Orders/dead")["reasons"][0]["reason"] == "none"
    assert "old" in site.page("/topics/Orders/messages?queue=dead")
