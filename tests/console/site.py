"""A console that runs within the test, and what tests ask of it."""

import re
from contextlib import ExitStack, contextmanager

import httpx

from rmq_spark.client import Broker
from rmq_spark.console.app import serve
from rmq_spark.console.auth import ConsoleSettings
from rmq_spark.console.state import Console
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.server import Server

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


class Site:
    """A console, and a client that calls it as a browser does."""

    def __init__(self, console, address):
        self.console = console
        self.address = address
        self.client = httpx.Client(base_url=address, follow_redirects=True, timeout=30)

    @property
    def broker(self):
        return self.console.broker

    def page(self, path, status=200):
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def json(self, path, status=200):
        answer = self.client.get(f"/api{path}")
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path, form=(), headers=SAME_SITE, status=200, mark=None):
        """Sends a form as the page would, with the mark that every page has."""
        fields = {"mark": self.mark() if mark is None else mark, "back": "/topics", **dict(form)}
        answer = self.client.post(path, data=fields, headers=headers)
        assert answer.status_code == status, answer.text
        return answer

    def mark(self):
        return self.console.sessions.form_mark("local")

    def note(self, path, form=()):
        """Sends a form, and returns what the console says to it."""
        found = re.search(r'role="status">(.*?)</p>', self.post(path, form).text, re.DOTALL)
        assert found, "no note"
        return found[1]


@contextmanager
def running(url, prefix="", ensemble=None, **settings):
    """A console on a free port."""
    with ExitStack() as stack:

        def connect():
            return Broker(Server(parse_connection({"url": url}), 1.0), key_prefix=prefix)

        console = Console(ConsoleSettings(**settings), connect, ensemble)
        site = Site(console, stack.enter_context(serve(console)))
        stack.callback(site.client.close)
        yield site
