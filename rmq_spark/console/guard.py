"""Who may see a page or change anything: hosts, users, and requests from other sites."""

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmq_spark.console.console_settings import ConsoleSettings

_log = logging.getLogger(__name__)

COOKIE = "rmq-console"
SESSION_S = 12 * 3600
# Without a token, everybody who reaches the address is the same user.
LOCAL_USER = "local"
_SAFE = ("GET", "HEAD")
_OPEN_PATHS = ("/login", "/static/")
# Anything else, such as a slash, could pass for a part of the path.
_HOST = re.compile(r"\[?(?P<name>[A-Za-z0-9._:-]*?)\]?(:[0-9]{1,5})?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: then a browser hides the origin of forms, which is compared below.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Sessions:
    """Signed texts for browsers: the session of a user, and the mark in the forms of a user.

    Both end with the process, which makes a new key whenever it starts.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def new(self, user: str) -> str:
        """Return the value of the cookie of a user who has logged in."""
        text = f"{user}:{int(time.time()) + SESSION_S}"
        return f"{text}:{self._sign('session', text)}"

    def user_of(self, cookie: str) -> str | None:
        """Return the user of a cookie; None if it was not made here, or has ended."""
        text, _, signature = cookie.rpartition(":")
        if not hmac.compare_digest(signature.encode(), self._sign("session", text).encode()):
            return None
        user, _, until = text.rpartition(":")
        return user if time.time() < int(until) else None

    def form_mark(self, user: str) -> str:
        """Return what each form of a user carries, and no other site can know."""
        return self._sign("form", user)

    def is_form_mark(self, user: str, mark: str) -> bool:
        """Return whether a form of this user carries the right mark."""
        return hmac.compare_digest(mark.encode(), self.form_mark(user).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()


class Guard:
    """An ASGI middleware that lets no request pass that the settings do not permit.

    It refuses hosts that are not the console's (a stranger's name may lead here), changes from
    other sites, and everybody without a token where tokens are needed. scope["user"] is the user.
    """

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, sessions: Sessions) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refuse(Request(scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """Return the answer to a request that is not permitted; None for one that is."""
        host = request.headers.get("host", "")
        found = _HOST.fullmatch(host)
        name = found["name"] if found else host
        if not (found and self._settings.is_own_name(name)):
            text = (
                f"The console does not answer for the host {name[:100]!r}. To reach it under this "
                f"name, start it with --allow-host {name[:100]}.\n"
            )
            return PlainTextResponse(text, 421)
        if request.method not in _SAFE and not is_same_site(request.headers, host):
            _log.warning("rmq console: refused a change from another site")
            return PlainTextResponse("Refused: the request comes from another site.\n", 403)
        request.scope["user"] = self._user(request)
        path = request.scope["path"]  # not that of request.url, which holds the host as well
        if request.scope["user"] is not None or path.startswith(_OPEN_PATHS):
            return None
        if path.startswith("/api/"):
            text = "A token is needed. Send it as the header Authorization: Bearer TOKEN.\n"
            return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})
        return RedirectResponse("/login", 303)

    def _user(self, request: Request) -> str | None:
        if not self._settings.tokens:
            return LOCAL_USER
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._settings.user_of(token.strip())
        user = self._sessions.user_of(request.cookies.get(COOKIE, ""))
        return user if user in self._settings.tokens else None


def is_same_site(headers: Mapping[str, str], host: str) -> bool:
    """Return whether a browser says that a request comes from a page of this host.

    Every browser of today says it in one of these headers. Programs do not, and change nothing
    here: they use the command rmq.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None:
        return origin.partition("://")[2].lower() == host.lower()
    return site == "same-origin"
