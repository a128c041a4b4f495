"""The addresses of the console, the pages and changes behind them, and their HTML."""

import logging
import math
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import redis
import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import rmq_spark
from rmq_spark.client.schedules import seen
from rmq_spark.console.actions import CHANGES, Change, field_of
from rmq_spark.console.auth import (
    SESSION_S,
    Guard,
    cookie_name,
    cookie_of,
    is_api,
    note_wrong_token,
)
from rmq_spark.console.pages import (
    SPANS,
    MessageGone,
    cells_of,
    consumers,
    dead,
    message,
    messages,
    server,
    topic,
    topics,
)
from rmq_spark.console.state import Console, Note
from rmq_spark.errors import (
    InvalidMessage,
    InvalidOption,
    RmqError,
    ServerError,
    UnknownTopic,
    cannot_listen,
)
from rmq_spark.inspect.fields import age_text, json_text, schedule_json
from rmq_spark.options import in_url
from rmq_spark.topics.reasons import printable
from rmq_spark.topics.types import TOPIC_TYPES

_log = logging.getLogger(__name__)

View = Callable[..., dict[str, Any]]
# A form with a message to send is the longest one.
LONGEST_FORM = 2 * 2**20
LONGEST_END_S = 15
# Requests beyond this number are refused at once: each takes a thread.
MOST_REQUESTS = 200
# Browsers read a backslash as a slash, and two slashes as the beginning of a host.
_OWN_ADDRESS = re.compile(r"/(?![/\\])[!-~]*")
# From these numbers on, a count is shown in thousands, and in millions.
_IN_THOUSANDS, _IN_MILLIONS = 10_000, 10_000_000
_UNSURE = "The change, or a part of it, may have been made: look before you repeat it."
LINE_WIDTH, LINE_HEIGHT = 120, 24
# A line shows so many seconds, and is broken where nobody looked for longer than a gap.
SECONDS_SHOWN = 300.0
LONGEST_GAP_S = 30.0


def jobs(console: Console, query: Mapping[str, str]) -> dict[str, Any]:
    return {"jobs": [job.to_json() for job in console.jobs.all()]}


def schedules(console: Console, query: Mapping[str, str]) -> dict[str, Any]:
    unreadable: list[dict[str, str]] = []

    def note(name: str, error: RmqError) -> None:
        unreadable.append({"schedule": name, "reason": str(error)})

    found = seen(console.broker, note)
    return {"schedules": list(map(schedule_json, found)), "unreadable": unreadable}


# The address of each page, its template, and the function that returns what it shows. The same,
# behind /api, is answered as JSON.
PAGES: tuple[tuple[str, str, View], ...] = (
    ("/", "topics.html", topics),
    ("/topics", "topics.html", topics),
    ("/topics/{name}", "topic.html", topic),
    ("/topics/{name}/messages", "messages.html", messages),
    ("/topics/{name}/messages/{reference}", "message.html", message),
    ("/topics/{name}/dead", "dead.html", dead),
    ("/consumers", "consumers.html", consumers),
    ("/schedules", "schedules.html", schedules),
    ("/server", "server.html", server),
    ("/jobs", "jobs.html", jobs),
)


@contextmanager
def serve(console: Console) -> Iterator[str]:
    host, port = console.settings.host, console.settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise cannot_listen(host, port, error) from None
    config = uvicorn.Config(
        create_app(console),
        access_log=False,  # an address may hold what a user has searched for
        log_level="warning",
        limit_concurrency=MOST_REQUESTS,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    web = uvicorn.Server(config)
    # The threads of its requests are daemons like it: one that waits for Redis holds up no end.
    thread = threading.Thread(target=web.run, args=([listening],), name="rmq-console", daemon=True)
    thread.start()
    try:
        yield f"http://{in_url(host)}:{listening.getsockname()[1]}/"
    finally:
        web.should_exit = True
        thread.join(LONGEST_END_S)


def create_app(console: Console) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(console.close)

    routes: list[Route | Mount] = [
        Route("/login", partial(_login, console), methods=["GET", "POST"]),
        Route("/logout", partial(_logout, console), methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("rmq_spark.console", "static")])),
    ]
    for path, template, view in PAGES:
        routes.append(Route(path, partial(_show, console, view, template)))
        routes.append(Route(f"/api{path}".rstrip("/"), partial(_show, console, view, None)))
    for path, change in CHANGES.items():
        routes.append(Route(path, partial(_change, console, change), methods=["POST"]))
    errors = (RmqError, HTTPException, redis.RedisError)
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, console.settings, console.sessions)],
        exception_handlers=dict.fromkeys(errors, partial(_failed, console)),
    )


async def _show(console: Console, view: View, template: str | None, request: Request) -> Response:
    shown = await run_in_threadpool(view, console, request.query_params, **request.path_params)
    return _json(shown) if template is None else _page(console, request, template, shown)


def _json(shown: Any, status: int = 200) -> Response:
    return Response(json_text(shown), status, media_type="application/json")


def _page(
    console: Console, request: Request, template: str, shown: Mapping[str, Any], status: int = 200
) -> HTMLResponse:
    user = request.scope.get("user")
    here = request.url.replace(scheme="", netloc="").remove_query_params("note")
    text = _environment.get_template(template).render(
        **shown,
        path=request.url.path,
        here=str(here),
        note=console.notes.find(request.query_params.get("note", "")),
        user=user,
        named_users=bool(console.settings.tokens),
        mark=console.sessions.form_mark(user) if user else "",
        allow_changes=console.settings.allow_changes,
        version=rmq_spark.__version__,
    )
    return HTMLResponse(text, status)


async def _change(console: Console, change: Change, request: Request) -> Response:
    form = await _form(request)
    user = request.scope["user"]
    if not console.settings.allow_changes:
        raise HTTPException(403, "The console only shows. Start it with --allow-changes.")
    if not console.sessions.is_form_mark(user, field_of(form, "mark")):
        raise HTTPException(403, "The form is too old: load its page again.")
    subject = request.path_params["subject"]
    try:
        note = await run_in_threadpool(change, console, form, user, subject)
    except RmqError as error:
        unsure = f" {_UNSURE}" if isinstance(error, ServerError) else ""
        note = Note(f"{error}{unsure}", failed=True)
    console.changed()
    back = _own_page(field_of(form, "back")).include_query_params(note=console.notes.keep(note))
    return RedirectResponse(str(back), 303)


def _own_page(address: str) -> URL:
    """Return the address if it is one of the console, else that of the topics."""
    return URL(address if _OWN_ADDRESS.fullmatch(address) else "/")


async def _form(request: Request) -> dict[str, list[str]]:
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                raise HTTPException(413, f"The form is longer than {LONGEST_FORM:,} bytes.")
    except ClientDisconnect:
        raise HTTPException(400, "The form has no end.") from None
    # A browser ends the lines of a text with both characters.
    text = body.decode("ascii", "replace").replace("%0D%0A", "%0A")
    return parse_qs(text, keep_blank_values=True)


async def _login(console: Console, request: Request) -> Response:
    if request.method != "POST":
        return _page(console, request, "login.html", {"failed": False})
    form = await _form(request)
    user = console.settings.user_of(field_of(form, "token").strip())
    if user is None:
        await note_wrong_token(request)
        return _page(console, request, "login.html", {"failed": True}, 401)
    _log.info("rmq console: %s logged in", user)
    answer = RedirectResponse(str(_own_page(request.query_params.get("then", ""))), 303)
    answer.set_cookie(
        cookie_name(request),
        console.sessions.new(user),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


async def _logout(console: Console, request: Request) -> Response:
    console.sessions.end(cookie_of(request))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return answer


async def _failed(console: Console, request: Request, error: Exception) -> Response:
    status, text = _status_of(error), _text_of(error)
    if is_api(request.url.path):
        return _json({"error": text}, status)
    if request.scope.get("user") is None:
        return PlainTextResponse(f"{printable(text)}\n", status)
    shown = {"status": status, "text": text, "again": status == 503}
    return _page(console, request, "failed.html", shown, status)


def _text_of(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return str(error.detail)
    if isinstance(error, redis.RedisError):  # its text may quote what was sent
        return f"Redis did not answer ({type(error).__name__})."
    return str(error)


def _status_of(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, UnknownTopic | MessageGone):
        return 404
    return 400 if isinstance(error, InvalidOption | InvalidMessage) else 503


def count(number: float | None) -> str:
    """Format a number for a table: 9,876, then 98.7k and 98.7M."""
    if number is None:
        return ""
    if number >= _IN_MILLIONS:
        return f"{number / 1_000_000:,.1f}M"
    if number >= _IN_THOUSANDS:
        return f"{number / 1000:,.1f}k"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def size(number: int | None) -> str:
    if number is None:
        return ""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= of:
            return f"{number / of:,.1f} {unit}"
    return f"{number:,} B"


def moment(text: str | int | None) -> Markup:
    """Format a time as an element, whose text the page changes to the viewer's time zone."""
    if text is None:
        return Markup("")
    if isinstance(text, int):  # beyond Python's calendar
        return Markup("{} ms").format(text)
    plain = datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S +00:00")
    return Markup('<time datetime="{}">{}</time>').format(text, plain)


def address(path: str, **query: Any) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def of_topic(name: str, *parts: str) -> str:
    return "/".join(("/topics", quote(name, safe=""), *parts))


def rate_line(points: list[dict[str, float]]) -> Markup:
    """Draw messages in and out per second, the latest at the right."""
    shown = [point for point in points if point["secondsAgo"] < SECONDS_SHOWN]
    most = max((max(one["inPerSecond"], one["outPerSecond"]) for one in shown), default=0.0) or 1.0

    def path(field: str) -> str:
        steps, before_s = "", math.inf
        for point in shown:
            x = LINE_WIDTH * (1 - point["secondsAgo"] / SECONDS_SHOWN)
            y = 1 + (LINE_HEIGHT - 2) * (1 - point[field] / most)
            step = "M" if before_s - point["secondsAgo"] > LONGEST_GAP_S else "L"
            steps, before_s = f"{steps}{step}{x:.1f} {y:.1f}", point["secondsAgo"]
        return steps

    return Markup(
        '<svg class="line" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="came" d="{}"/><path class="went" d="{}"/></svg>'
    ).format(LINE_WIDTH, LINE_HEIGHT, path("inPerSecond"), path("outPerSecond"))


_environment = Environment(
    loader=PackageLoader("rmq_spark.console"),
    autoescape=True,
    finalize=lambda value: printable(value, "\n\t") if type(value) is str else value,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(count=count, size=size, age=age_text, moment=moment)
_environment.globals.update(
    address=address,
    cells_of=cells_of,
    line_of=rate_line,
    of_topic=of_topic,
    spans=SPANS,
    types=TOPIC_TYPES,
)
