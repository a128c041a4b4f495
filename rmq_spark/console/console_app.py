"""The addresses of the console, and the pages and changes behind them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import redis
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rmq_spark.console import changes
from rmq_spark.console.console import Console
from rmq_spark.console.guard import COOKIE, SESSION_S, Guard
from rmq_spark.console.notes import Note
from rmq_spark.console.pages.consumer_views import consumers
from rmq_spark.console.pages.message_views import MessageGone, dead, message, messages
from rmq_spark.console.pages.server_views import server
from rmq_spark.console.pages.topic_views import topic, topics
from rmq_spark.console.rendering import page_of
from rmq_spark.errors import InvalidMessage, InvalidOption, RmqError, ServerError, UnknownTopic

_log = logging.getLogger(__name__)

View = Callable[..., dict[str, Any]]
# A form with a message to send is the longest one.
LONGEST_FORM = 2 * 2**20
# So long a wrong token is answered with: nobody can try many.
WRONG_TOKEN_S = 0.5
# Browsers read a backslash as a slash, and two slashes as the beginning of a host.
_OWN_ADDRESS = re.compile(r"/(?![/\\])[!-~]*")


def jobs(console: Console, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the jobs of this process, the latest first."""
    return {"jobs": [job.to_json() for job in console.jobs.all()]}


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
    ("/server", "server.html", server),
    ("/jobs", "jobs.html", jobs),
)


def create_app(console: Console) -> Starlette:
    """Return the application of a console."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(console.close)

    routes: list[Route | Mount] = []
    for path, template, view in PAGES:
        routes.append(Route(path, partial(_page, console, template, view)))
        routes.append(Route(f"/api{path}".rstrip("/"), partial(_json, console, view)))
    for name, change in changes.OF_TOPICS.items():
        path = f"/topics/{{subject}}/{name}"
        routes.append(Route(path, partial(_change, console, change), methods=["POST"]))
    for name, change in changes.OF_JOBS.items():
        path = f"/jobs/{{subject}}/{name}"
        routes.append(Route(path, partial(_change, console, change), methods=["POST"]))
    routes += [
        Route("/login", partial(_login, console), methods=["GET", "POST"]),
        Route("/logout", partial(_logout, console), methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("rmq_spark.console", "static")])),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, console.settings, console.sessions)],
        exception_handlers={
            RmqError: partial(_failed, console),
            HTTPException: partial(_failed, console),
            redis.RedisError: partial(_failed, console),
        },
    )


async def _page(console: Console, template: str, view: View, request: Request) -> Response:
    shown = await run_in_threadpool(view, console, request.query_params, **request.path_params)
    return page_of(console, request, template, shown)


async def _json(console: Console, view: View, request: Request) -> Response:
    shown = await run_in_threadpool(view, console, request.query_params, **request.path_params)
    return JSONResponse(shown)


async def _change(console: Console, change: changes.Change, request: Request) -> Response:
    """Make a change, and lead the user to the page from which it came."""
    form = await _form(request)
    user = request.scope["user"]
    if not console.settings.allow_changes:
        raise HTTPException(403, "The console only shows. Start it with --allow-changes.")
    if not console.sessions.is_form_mark(user, changes.field_of(form, "mark")):
        raise HTTPException(403, "The form is too old: load its page again.")
    subject = request.path_params["subject"]
    try:
        note = await run_in_threadpool(change, console, form, user, subject)
    except ServerError:
        raise
    except RmqError as error:
        note = Note(str(error), failed=True)
    console.changed()
    return RedirectResponse(_behind(changes.field_of(form, "back"), console.notes.add(note)), 303)


def _behind(back: str, note: str) -> str:
    """Return the address of a page of the console, with a note. back: what its form says."""
    parts = urlsplit(back if _OWN_ADDRESS.fullmatch(back) else "/")
    query = parse_qs(parts.query)
    return f"{parts.path}?{urlencode({**query, 'note': note}, doseq=True)}"


async def _form(request: Request) -> dict[str, list[str]]:
    """Read the fields of a form. Raises HTTPException for one that is too long or breaks off."""
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
        return page_of(console, request, "login.html", {"failed": False})
    form = await _form(request)
    user = console.settings.user_of(changes.field_of(form, "token").strip())
    if user is None:
        _log.warning("rmq console: somebody gave a wrong token")
        await asyncio.sleep(WRONG_TOKEN_S)
        return page_of(console, request, "login.html", {"failed": True}, 401)
    _log.info("rmq console: %s logged in", user)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        COOKIE,
        console.sessions.new(user),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


async def _logout(console: Console, request: Request) -> Response:
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


async def _failed(console: Console, request: Request, error: Exception) -> Response:
    """Answer with an error, as a page or as JSON."""
    status, text = _status_of(error), _text_of(error)
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": text}, status)
    if request.scope.get("user") is None:
        return PlainTextResponse(f"{text}\n", status)
    shown = {"status": status, "text": text, "again": status == 503}
    return page_of(console, request, "failed.html", shown, status)


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
