"""Who may see and change anything."""

import logging
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest

from rmq_spark.console.auth import (
    HEADERS,
    ConsoleSettings,
    Sessions,
    is_loopback,
    read_tokens,
)
from rmq_spark.errors import InvalidOption

from .site import running

TOKENS = {"anna": "a" * 24, "bob": "b" * 24}
PAUSE = "/topics/Orders/pause"


@pytest.fixture
def orders(site):
    site.broker.create("Orders", "FixedTime", 1)
    return site


@pytest.fixture
def guarded(new_site):
    site = new_site(tokens=TOKENS, allow_changes=True)
    site.broker.create("Orders", "FixedTime", 1)
    return site


def paused(site):
    return site.broker.definition("Orders").paused


@pytest.mark.parametrize("path", ["/", "/topics/None", "/api/server", "/static/console.css", "/x"])
def test_every_answer_has_the_headers_of_the_policy(site, path):
    answer = site.client.get(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "server" not in answer.headers


def test_pages_hold_nothing_that_the_policy_forbids(stocked):
    """No inline script or style, and nothing from elsewhere."""
    for path in ("/topics", "/topics/Orders", "/topics/Alerts/dead", "/consumers", "/server"):
        text = stocked.page(path)
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick" not in text
        assert text.count("<script") == text.count('<script type="module" src="/static/') == 1
        assert "http" not in text.replace("http-equiv", ""), path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
def test_a_host_that_is_not_the_consoles_is_refused(site, host):
    """So a name server of a stranger cannot lead a browser here."""
    answer = site.client.get("/api/topics", headers={"Host": host})
    assert answer.status_code in (400, 421)
    assert "topics" not in answer.text


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1/static/x?", "127.0.0.1:80/login#", "a@127.0.0.1", "127.0.0.1:abc", "[", "[::1"],
)
def test_a_host_that_is_none_is_refused(guarded, host):
    """Some versions of Starlette take what follows its slash for the path: /static/ is open."""
    answer = guarded.client.get("/api/topics", headers={"Host": host})
    assert answer.status_code == 421
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "host", ["localhost:1", "127.0.0.1", "[::1]:80", "10.1.2.3:9310", "me.lan", "me.lan:99999"]
)
def test_addresses_and_named_hosts_are_answered(new_site, host):
    """Failed before: older versions of Starlette refuse to read a port that there cannot be."""
    site = new_site(names=["me.lan"], tokens=TOKENS)
    assert site.client.get("/login", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_a_change_from_another_site_is_refused(orders, headers):
    orders.post(PAUSE, headers=headers, status=403)
    assert not paused(orders)


def test_an_old_browser_is_known_by_its_origin(orders):
    orders.post(PAUSE, headers={"Origin": orders.address.rstrip("/")})
    assert paused(orders)


def test_a_form_without_its_mark_is_refused(orders):
    for mark in ("", "0" * 64, Sessions().form_mark("local"), "ä"):
        orders.post(PAUSE, mark=mark, status=403)
    assert not paused(orders)


def test_without_allow_changes_nothing_is_changed(new_site):
    site = new_site()
    site.broker.create("Orders", "FixedTime", 1)
    assert "--allow-changes" in site.post(PAUSE, status=403).text
    assert not paused(site)
    assert "<button>Pause" not in site.page("/topics/Orders")


def test_a_get_changes_nothing(orders):
    assert orders.client.get(PAUSE).status_code == 405
    assert not paused(orders)


def test_a_form_that_is_too_long_is_refused(orders):
    form = {"content": "x" * 3_000_000}
    orders.post("/topics/Orders/send", form, status=413)


def test_a_form_that_breaks_off_leaves_no_trace_of_an_error(redis_url, capfd):
    with running(redis_url, "broken:", tokens=TOKENS) as site:
        address = urlsplit(site.address)
        with socket.create_connection((address.hostname, address.port)) as stranger:
            stranger.sendall(
                b"POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
                b"Content-Length: 9\r\n\r\ntoken"
            )
            assert site.client.get("/login").status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())


def test_without_a_token_nothing_is_shown(guarded):
    guarded.client.follow_redirects = False
    answer = guarded.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    # Failed before: the JSON of the topics led to the login, too.
    for path in ("/api", "/api/topics"):
        assert guarded.client.get(path).status_code == 401
    assert guarded.post(PAUSE, status=303).headers["location"] == "/login"
    assert not paused(guarded)
    assert guarded.client.get("/login").status_code == 200


def log_in(site, token):
    headers = {"Sec-Fetch-Site": "same-origin"}
    return site.client.post("/login", data={"token": token}, headers=headers)


def test_a_token_logs_in_and_its_user_is_logged(guarded, caplog):
    caplog.set_level(logging.INFO, "rmq_spark.console")
    assert "Topics" in log_in(guarded, TOKENS["anna"]).text
    mark = guarded.console.sessions.form_mark("anna")
    guarded.post(PAUSE, mark=mark)
    assert paused(guarded)
    assert "anna paused topic Orders" in caplog.text
    assert TOKENS["anna"] not in caplog.text
    assert TOKENS["anna"] not in guarded.page("/topics/Orders")


def test_the_login_leads_to_the_page_that_was_asked_for(guarded):
    """Failed before: it led to the topics."""
    asked = "/topics/Orders?group=default"
    login = guarded.client.get(asked).url
    guarded.client.follow_redirects = False
    for given, then in ((login, asked), ("/login?then=//host", "/"), ("/login?then=host", "/")):
        form = {"token": TOKENS["anna"]}
        answer = guarded.client.post(given, data=form, headers={"Sec-Fetch-Site": "same-origin"})
        assert (answer.status_code, answer.headers["location"]) == (303, then)


def test_the_mark_of_another_user_is_refused(guarded):
    log_in(guarded, TOKENS["anna"])
    guarded.post(PAUSE, mark=guarded.console.sessions.form_mark("bob"), status=403)
    assert not paused(guarded)


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(guarded):
    guarded.client.follow_redirects = False
    cookie = log_in(guarded, TOKENS["anna"]).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKENS["anna"] not in cookie


def test_a_wrong_token_does_not_log_in(guarded, caplog):
    answer = log_in(guarded, "c" * 24)
    assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None)
    assert "not known" in answer.text
    assert "c" * 24 not in caplog.text + answer.text


def test_a_program_sends_its_token_as_a_header(guarded, caplog):
    headers = {"Authorization": f"Bearer {TOKENS['bob']}"}
    assert guarded.client.get("/api/topics", headers=headers).status_code == 200
    for wrong in ("Bearer c", "Bearer", f"Basic {TOKENS['bob']}", "ä"):
        headers = {"Authorization": wrong.encode()}
        assert guarded.client.get("/api/topics", headers=headers).status_code == 401
    # Failed before: only the form of the login told of wrong tokens, and made their sender wait.
    assert caplog.text.count("127.0.0.1 gave a wrong token") == 1


def test_a_made_up_cookie_is_nobodys(guarded):
    for value in ("anna:9999999999:0", "anna", "", Sessions().new("anna")):
        cookies = {f"rmq-console-{urlsplit(guarded.address).port}": value}
        answer = httpx.get(f"{guarded.address}api/topics", cookies=cookies)
        assert answer.status_code == 401


def test_two_consoles_on_one_host_keep_their_sessions(guarded, new_site):
    """Failed before: a browser sends its cookies to each port, and both had one name."""
    other = new_site(tokens=TOKENS)
    log_in(guarded, TOKENS["anna"])
    cookies = httpx.Cookies(guarded.client.cookies)
    with httpx.Client(base_url=other.address, cookies=cookies) as browser:
        form = {"token": TOKENS["bob"]}
        browser.post("/login", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        for site in (other, guarded):
            assert browser.get(f"{site.address}api/topics").status_code == 200


def test_a_session_ends(monkeypatch):
    sessions = Sessions()
    cookie = sessions.new("anna")
    assert sessions.user_of(cookie) == "anna"
    monkeypatch.setattr("rmq_spark.console.auth.time", SimpleNamespace(time=lambda: 4e9))
    assert sessions.user_of(cookie) is None


def test_of_very_many_sessions_the_oldest_ends(monkeypatch):
    monkeypatch.setattr("rmq_spark.console.auth.SESSIONS_KEPT", 2)
    sessions = Sessions()
    cookies = [sessions.new(user) for user in ("anna", "bob", "anna")]
    assert [sessions.user_of(cookie) for cookie in cookies] == [None, "bob", "anna"]


def test_logging_out_ends_the_session_and_no_other(guarded):
    """Failed before: only the browser forgot it."""
    log_in(guarded, TOKENS["anna"])
    others = dict(guarded.client.cookies)
    log_in(guarded, TOKENS["anna"])
    own = dict(guarded.client.cookies)
    guarded.client.post("/logout", headers={"Sec-Fetch-Site": "same-origin"})
    for cookies, status in ((own, 401), (others, 200)):
        answer = httpx.get(f"{guarded.address}api/topics", cookies=cookies)
        assert answer.status_code == status


def test_a_user_may_have_any_name(new_site):
    """Failed before: a cookie has only the letters of Latin-1."""
    site = new_site(tokens={"анна": "a" * 24})
    assert "Log out анна" in log_in(site, "a" * 24).text


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_are_those_of_ipv4_too(redis_url):
    with running(redis_url, "both:", tokens=TOKENS, host="::") as site:
        port = urlsplit(site.address).port
        for host in ("127.0.0.1", "[::1]"):
            assert httpx.get(f"http://{host}:{port}/login").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "me.lan"])
def test_an_address_that_others_reach_needs_tokens(host):
    with pytest.raises(InvalidOption, match=r"needs --tokens.*openssl rand"):
        ConsoleSettings(host=host)
    assert "a" * 24 not in repr(ConsoleSettings(host=host, tokens=TOKENS))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_none(host):
    assert is_loopback(host)
    assert ConsoleSettings(host=host)


def test_tokens_are_read_from_a_file(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"# who\nanna {TOKENS['anna']}\n\nbob {TOKENS['bob']}\n")
    assert read_tokens(file) == TOKENS


@pytest.mark.parametrize(
    "text", ["", "anna short", "anna", f"anna {'a' * 24}\nanna {'b' * 24}", b"\xff\xfe", None]
)
def test_a_bad_file_of_tokens_is_told_and_not_shown(tmp_path, text):
    file = tmp_path / "tokens"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InvalidOption, match="--tokens=") as raised:
        read_tokens(file)
    assert "short" not in str(raised.value).replace("least", "")
    assert "b" * 24 not in str(raised.value)
