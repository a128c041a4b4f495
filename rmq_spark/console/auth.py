"""Who may see a page or change anything: hosts, users, and requests from other sites."""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmq_spark.errors import InvalidOption

SHORTEST_TOKEN = 16
_ACCEPTED_TOKENS = (
    f"a file with lines such as 'anna TOKEN', each token at least {SHORTEST_TOKEN} characters long"
)
_REMEDY = 'Make one: echo "anna $(openssl rand -hex 24)" > console-tokens; chmod 600 console-tokens'
_log = logging.getLogger(__name__)
SESSION_S = 12 * 3600
# Of more sessions than these, the oldest ends.
SESSIONS_KEPT = 10_000
# How long the answer to a wrong token takes, so that nobody can try many.
WRONG_TOKEN_S = 0.5
# Without a token, everybody who reaches the address is the same user.
LOCAL_USER = "local"
_SAFE = ("GET", "HEAD")
_OPEN_PATHS = ("/login", "/static/")
# Anything else, such as a slash, could pass for a part of the path.
_HOST = re.compile(r"\[?(?P<name>[A-Za-z0-9._:-]*?)\]?(:(?P<port>[0-9]{1,5}))?")
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


@dataclass(frozen=True)
class ConsoleSettings:
    """The settings of the console. Its repr shows no secret.

    host, port: where it listens. allow_changes: whether pages may change queues. hide_contents:
    whether no page shows what is in messages. tokens: the token of each user; empty if everybody
    who reaches the address may use it. names: further names under which browsers reach it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_changes: bool = False
    hide_contents: bool = False
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.tokens and not is_loopback(self.host):
            raise InvalidOption(
                f"--host={self.host} needs --tokens, because others can reach this address. "
                f"Accepted: {_ACCEPTED_TOKENS}. {_REMEDY}"
            )

    def user_of(self, token: str) -> str | None:
        given = token.encode()
        found = [
            name
            for name, known in self.tokens.items()
            if secrets.compare_digest(known.encode(), given)
        ]
        return found[0] if found else None

    def is_own_name(self, host: str) -> bool:
        """Return whether a request for this host is meant for the console.

        An address is no name that a stranger's name server could lead here, so any is accepted.
        host: without the port.
        """
        known = {"localhost", self.host.lower(), *(name.lower() for name in self.names)}
        return host.lower() in known or _address_of(host) is not None


def is_loopback(host: str) -> bool:
    address = _address_of(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def read_tokens(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidOption(
            f"--tokens={str(file)!r} cannot be read ({reason}). Accepted: {_ACCEPTED_TOKENS}. "
            f"{_REMEDY}"
        ) from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < SHORTEST_TOKEN or words[0] in tokens:
            raise InvalidOption(
                f"--tokens={str(file)!r}: line {number} is not accepted (it is not shown: it may "
                f"hold a token). Accepted: {_ACCEPTED_TOKENS}, each name once."
            )
        tokens[words[0]] = words[1]
    if not tokens:
        raise InvalidOption(
            f"--tokens={str(file)!r} names nobody. Accepted: {_ACCEPTED_TOKENS}. {_REMEDY}"
        )
    return tokens


class Sessions:
    """The sessions of browsers, and the marks in their forms, until the process ends."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, tuple[str, float]] = {}  # user and end of each, by its cookie

    def new(self, user: str) -> str:
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = user, time.time() + SESSION_S
        if len(self._sessions) > SESSIONS_KEPT:
            self.end(next(iter(self._sessions)))
        return cookie

    def user_of(self, cookie: str) -> str | None:
        user, until_s = self._sessions.get(cookie, (None, 0.0))
        return user if time.time() < until_s else None

    def end(self, cookie: str) -> None:
        self._sessions.pop(cookie, None)

    def form_mark(self, user: str) -> str:
        """Return what each form of a user carries, and no other site can know."""
        return hmac.new(self._key, user.encode(), hashlib.sha256).hexdigest()

    def is_form_mark(self, user: str, mark: str) -> bool:
        return hmac.compare_digest(mark.encode(), self.form_mark(user).encode())


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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope)
        refused = self._refuse(request)
        if refused is not None and request.scope.get("user", "") is None and _token_in(request):
            await note_wrong_token(request)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
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
        if is_api(path):
            text = "A token is needed. Send it as the header Authorization: Bearer TOKEN.\n"
            return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})
        asked = str(request.url.replace(scheme="", netloc=""))
        then = f"?{urlencode({'then': asked})}" if request.method in _SAFE and asked != "/" else ""
        return RedirectResponse(f"/login{then}", 303)

    def _user(self, request: Request) -> str | None:
        if not self._settings.tokens:
            return LOCAL_USER
        if token := _token_in(request):
            return self._settings.user_of(token)
        user = self._sessions.user_of(cookie_of(request))
        return user if user in self._settings.tokens else None


def _token_in(request: Request) -> str:
    """Return the token that a program has sent, or "": a proxy may have a login of its own."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def note_wrong_token(request: Request) -> None:
    address = request.client.host if request.client else "an unknown address"
    _log.warning("rmq console: %s gave a wrong token", address)
    await asyncio.sleep(WRONG_TOKEN_S)


def cookie_name(request: Request) -> str:
    """Name the cookie after the port: a browser has the same cookies for all ports of a host."""
    found = _HOST.fullmatch(request.headers.get("host", ""))
    return f"rmq-console-{(found and found['port']) or 'default'}"


def cookie_of(request: Request) -> str:
    return request.cookies.get(cookie_name(request), "")


def is_api(path: str) -> bool:
    return f"{path}/".startswith("/api/")


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
