"""The console in a real browser: what a user sees, and every action, by mouse and by keyboard."""

import re
import time

import pytest
from playwright.sync_api import expect

from rmq_spark.client import Message
from rmq_spark.console.app import PAGES

from .browsers import opened
from .site import running
from .stocked import HTML
from .test_changes import bury

READABLE = [
    *(path for path, _, _ in PAGES if "{" not in path),
    *("/topics/Orders", "/topics/Alerts", "/topics/Prices/messages", "/topics/Alerts/dead"),
    *("/topics/Replan/messages?queue=prepare", "/topics/Alerts/messages?queue=dead"),
]
PHONE = 360
expect.set_options(timeout=15_000)


class Visitor:
    """A page that notes every complaint of the browser, and every request that leaves the site."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        self.requests = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: self.complaints.append("a dialog"))

    def _note(self, kind, text):
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def open(self, site, path):
        self.page.goto(site.address.rstrip("/") + path)
        return self.page


@pytest.fixture
def new_visitor(browser):
    from contextlib import ExitStack

    with ExitStack() as stack:

        def new(**options):
            return Visitor(stack.enter_context(opened(browser, **options)))

        yield new


@pytest.fixture
def visitor(new_visitor):
    visitor = new_visitor()
    yield visitor
    assert visitor.complaints == []


@pytest.fixture
def orders(site):
    site.broker.create("Orders", "FixedTime", 4, max_retries=0)
    return site.broker.queue("Orders")


def note_of(page):
    return page.get_by_role("status")


@pytest.mark.parametrize("path", READABLE)
def test_every_page_loads_from_the_console_alone_and_without_complaints(stocked, visitor, path):
    page = visitor.open(stocked, path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert {url.startswith(stocked.address) for url in visitor.requests} == {True}


@pytest.mark.parametrize("path", READABLE)
def test_every_page_fits_a_telephone(stocked, new_visitor, path):
    visitor = new_visitor(width=PHONE, height=700)
    page = visitor.open(stocked, path)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert visitor.complaints == []


@pytest.mark.parametrize("width", [PHONE, 1100])
def test_a_message_fits_the_width(stocked, new_visitor, width):
    page = new_visitor(width=width, height=700).open(stocked, "/topics/Prices/messages")
    page.locator("#messages a").first.click()
    expect(page.get_by_role("heading", name="Content")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_there_is_a_dark_and_a_light_look(stocked, new_visitor):
    grounds = []
    for dark in (False, True):
        page = new_visitor(dark=dark).open(stocked, "/topics")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds.append(sum(map(int, re.findall(r"\d+", ground))))
    assert grounds[0] > 3 * 200
    assert grounds[1] < 3 * 50


def test_times_are_in_the_viewers_zone_with_the_offset(site, orders, visitor):
    orders.send([Message("x", fixed_time=1_900_000_000_000)])  # 2030-03-17T17:46:40Z
    page = visitor.open(site, "/topics/Orders/messages")
    expect(page.locator("#messages time")).to_have_text("2030-03-17 23:16:40 +05:30")


def test_figures_change_without_a_click_and_the_focus_stays(site, orders, visitor):
    page = visitor.open(site, "/topics")
    row = page.get_by_role("row", name=re.compile("^Orders"))
    row.get_by_role("link").focus()
    orders.send(["a", "b", "c"], fixed_time=1)
    expect(row.locator("td.number").nth(2)).to_have_text("3")
    assert page.evaluate("document.activeElement.textContent") == "Orders"


def test_live_can_be_switched_off(site, orders, visitor):
    page = visitor.open(site, "/topics")
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
    page.wait_for_load_state("networkidle")
    before = len(visitor.requests)
    page.wait_for_timeout(4000)
    assert len(visitor.requests) == before


def test_contents_with_html_are_texts(site, orders, visitor):
    orders.send([HTML], fixed_time=1)
    page = visitor.open(site, "/topics/Orders/messages")
    expect(page.locator("#messages")).to_contain_text("<script>")
    page.locator("#messages a").first.click()
    expect(page.locator("pre")).to_have_text(HTML)
    assert page.title() != "taken"


def test_a_topic_is_paused_changed_and_sent_to(site, orders, visitor):
    page = visitor.open(site, "/topics/Orders")
    page.get_by_role("button", name="Pause delivery").click()
    expect(note_of(page)).to_contain_text("is paused")
    page.get_by_role("button", name="Resume delivery").click()
    expect(note_of(page)).to_contain_text("delivers again")
    page.get_by_label("retries").fill("3")
    page.get_by_label("backoff").fill("10s, 1m")
    page.get_by_role("button", name="Save settings").click()
    expect(note_of(page)).to_contain_text("max_retries=3")
    page.get_by_label("retries").fill("99")
    page.get_by_role("button", name="Save settings").click()
    expect(note_of(page)).to_contain_text("0 to 16")
    page.get_by_text("Send a test message").click()
    page.get_by_label("content", exact=True).fill("hello")
    page.get_by_label("delay").fill("1h")
    page.get_by_role("button", name="Send one message").click()
    expect(note_of(page)).to_contain_text("was sent to Orders")
    assert site.broker.definition("Orders").max_retries == 3
    assert orders.figures().store.count == 1


def test_ticked_messages_are_cancelled(site, orders, visitor):
    orders.send([f"{number}" for number in range(8)], fixed_time=1)
    page = visitor.open(site, "/topics/Orders/messages")
    page.get_by_label("Choose message 2", exact=True).check()
    page.get_by_text("Cancel the ticked…").click()
    page.get_by_role("button", name="Yes, cancel them").click()
    expect(note_of(page)).to_contain_text("1 message cancelled")
    page.get_by_label("All on this page").check()
    page.get_by_text("Cancel the ticked…").click()
    page.get_by_role("button", name="Yes, cancel them").click()
    expect(note_of(page)).to_contain_text("7 messages cancelled")
    assert orders.figures().store.count == 0


def test_messages_are_searched_and_paged(stocked, visitor):
    page = visitor.open(stocked, "/topics/Orders/messages")
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="First page")).to_be_visible()
    page.locator("#find").fill('{"order": 39')
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#messages tbody tr")).to_have_count(11)
    expect(page.get_by_text("This search has read 400 of them")).to_be_visible()


def test_dead_messages_are_requeued_and_deleted(site, orders, visitor):
    bury(site, orders, [f"{number}" for number in range(6)], "Broken: by hand")
    page = visitor.open(site, "/topics/Orders/messages?queue=dead")
    page.get_by_label("Choose message 1", exact=True).check()
    page.get_by_role("button", name="Requeue the ticked").click()
    expect(note_of(page)).to_contain_text("1 message requeued")
    page.get_by_label("Choose message 1", exact=True).check()
    page.get_by_text("Delete the ticked…").click()
    page.get_by_role("button", name="Yes, delete them for good").click()
    expect(note_of(page)).to_contain_text("1 message deleted")
    page.locator("#messages a").first.click()
    expect(page.get_by_text("Broken: by hand")).to_be_visible()
    page.get_by_role("button", name="Requeue this message").click()
    expect(note_of(page)).to_contain_text("1 message requeued")
    page.locator("#messages a").first.click()
    page.get_by_text("Delete…").click()
    page.get_by_role("button", name="Yes, delete it for good").click()
    expect(note_of(page)).to_contain_text("1 message deleted")
    figures = orders.figures()
    assert (figures.dead.count, figures.store.count) == (2, 2)


def test_one_message_is_cancelled(site, orders, visitor):
    orders.send(["x"], fixed_time=1)
    page = visitor.open(site, "/topics/Orders/messages")
    page.locator("#messages a").first.click()
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(note_of(page)).to_contain_text("1 message cancelled")


def test_all_dead_of_a_reason_are_requeued_and_the_rest_deleted(site, orders, visitor):
    bury(site, orders, [f"a{number}" for number in range(30)], ValueError("broken"))
    bury(site, orders, [f"b{number}" for number in range(20)], "lease ran out")
    page = visitor.open(site, "/topics/Orders/dead")
    row = page.get_by_role("row", name=re.compile("^ValueError"))
    row.get_by_text("Requeue…").click()
    row.get_by_role("button", name="Yes, requeue all of this reason").click()
    expect(page.locator("#jobs")).to_contain_text("30")
    expect(page.locator("#jobs .badge")).to_have_text("done")
    visitor.open(site, "/topics/Orders/dead")
    page.get_by_text("Delete all…").click()
    page.get_by_role("button", name="Yes, delete all dead messages for good").click()
    expect(page.locator("#jobs .badge").first).to_have_text("done")
    figures = orders.figures()
    assert (figures.dead.count, figures.store.count) == (0, 30)


def test_a_job_is_stopped_and_resumed(site, orders, visitor, monkeypatch):
    """A slow job, so that there is time for a click."""
    from rmq_spark.console import jobs

    requeue = jobs.requeue_page

    def slowly(*args):
        time.sleep(0.3)
        return requeue(*args)

    monkeypatch.setattr(jobs, "requeue_page", slowly)
    monkeypatch.setattr("rmq_spark.inspect.browse.ENTRIES_A_READ", 4)
    contents = [f"{number}" for number in range(100)]
    bury(site, orders, contents, "Broken: x")
    page = visitor.open(site, "/topics/Orders/dead")
    page.get_by_text("Requeue all…").click()
    page.get_by_role("button", name="Yes, requeue all dead messages").click()
    page.get_by_role("button", name="Stop").click()
    expect(note_of(page)).to_contain_text("has stopped after")
    stopped = orders.figures()
    assert 0 < stopped.dead.count < 100
    assert stopped.dead.count + stopped.store.count == 100
    monkeypatch.setattr(jobs, "requeue_page", requeue)
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#jobs .badge")).to_have_text("done")
    assert (orders.figures().dead.count, orders.figures().store.count) == (0, 100)


def test_it_works_by_keyboard(site, orders, visitor):
    orders.send(["x"], fixed_time=1)
    page = visitor.open(site, "/topics/Orders/messages")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for key, name in (("Space", "Choose message 1"), ("Enter", "Cancel the ticked…")):
        tab_to(page, name)
        page.keyboard.press(key)
    tab_to(page, "Yes, cancel them in group default")
    page.keyboard.press("Enter")
    expect(note_of(page)).to_contain_text("1 message cancelled")


def tab_to(page, name):
    """Presses Tab until an element with this name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = "(e => e.getAttribute('aria-label') || e.textContent.trim())"
        if page.evaluate(f"{focused}(document.activeElement)") == name:
            return
    pytest.fail(f"Tab does not reach {name}")


def test_a_topic_that_is_deleted_under_its_page(site, orders, new_visitor):
    page = new_visitor().open(site, "/topics/Orders")
    site.broker.delete("Orders")
    expect(page.locator("#gone")).to_contain_text("The topic Orders does not exist")


def test_while_redis_is_gone_the_page_says_so_and_it_recovers(own_redis, new_visitor):
    with running(own_redis.url) as site:
        site.broker.create("Orders", "FixedTime", 1)
        page = new_visitor().open(site, "/topics")
        expect(page.locator("#topics")).to_contain_text("Orders")
        own_redis.kill()
        expect(page.locator("#gone")).to_contain_text("cannot be reached")
        opened_meanwhile = new_visitor().open(site, "/server")
        expect(opened_meanwhile.locator("#failed")).to_contain_text("cannot be reached")
        own_redis.start()
        site.broker.create("Fresh", "FixedTime", 1)
        expect(page.locator("#topics")).to_contain_text("Fresh")
        expect(page.locator("#gone")).to_be_hidden()
        expect(opened_meanwhile.get_by_role("heading", name="Server")).to_be_visible()


def test_a_user_logs_in_and_out(new_site, visitor):
    site = new_site(tokens={"anna": "a" * 24})
    page = visitor.open(site, "/topics")
    page.get_by_label("token").fill("a" * 24)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    assert "aaaa" not in page.url
    page.get_by_role("button", name="Log out anna").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_page_of_another_site_changes_nothing(site, orders, new_visitor):
    """The form is sent by a real browser; only the other site's page is made up."""
    page = new_visitor().page
    form = f'<form method="post" action="{site.address}topics/Orders/pause"><button>'
    page.route(
        "http://other.example/", lambda route: route.fulfill(body=form, content_type="text/html")
    )
    page.goto("http://other.example/")
    with page.expect_navigation() as sent:
        page.get_by_role("button").click()
    assert sent.value.status == 403
    assert not site.broker.definition("Orders").paused
