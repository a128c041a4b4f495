"""A pytest plugin: tests' Redis servers permit what docs/security.md says, and nothing else.

    make test-all ARGS="-p tests.security.as_least_user tests/lua tests/client tests/spark"

Who connects to them without a name is the documented user, for all keys: whatever rmq_spark does,
here or in Spark's processes. Tests look into Redis and prepare it with other commands: what they
call themselves runs as a user who may do everything. Servers with settings of their own for
passwords are left alone.
"""

import sys
import tempfile
from pathlib import Path

import redis

from rmq_spark.local.redis import LocalRedis
from rmq_spark.redis.server import Server
from tests.security.documented import documented_users

ADMIN = {"username": "admin", "password": "any"}
# What the document names for other databases, clients with a name, clusters, and the warning.
BESIDES = ["+select", "+client|setname", "+cluster|slots", "+command", "+config|get"]


def _users_file():
    commands = [rule for rule in documented_users()["rmq"] if rule.startswith("+")]
    file = Path(tempfile.mkdtemp(prefix="rmq-users-")) / "users.acl"
    rules = " ".join(["on nopass ~* resetchannels -@all", *commands, *BESIDES])
    file.write_text(f"user default {rules}\nuser admin on nopass ~* &* +@all\n")
    return str(file)


def _is_ours(frame):
    return frame.f_globals.get("__name__", "").startswith("rmq_spark.")


def _asked_by_a_test(frame):
    """Whether a test, not rmq_spark, uses a server's client, be it through command or commands."""
    through = []
    while frame.f_globals.get("__name__") == Server.__module__:
        through.append(frame.f_code.co_name)
        frame = frame.f_back
    runs_a_script = through and not {"command", "commands"} & set(through)
    return not _is_ours(frame) and not runs_a_script


class _Clients:
    """Server.client: the documented user's for rmq_spark, the admin's for tests."""

    def __get__(self, server, owner=None):
        own = server.__dict__.get("own_client")
        admins = server.__dict__.get("admins_client")
        return admins if admins is not None and _asked_by_a_test(sys._getframe(1)) else own

    def __set__(self, server, client):
        server.__dict__["own_client"] = client
        options = server._options
        named = options.username or options.password or "@" in options.url
        if client is not None and not options.cluster and not named:
            server.__dict__["admins_client"] = redis.Redis.from_url(options.url, **ADMIN)


def _with_users(init, file):
    def limited(self, executable=None, settings=None):
        given = dict(settings or {})
        if not {"requirepass", "aclfile"} & set(given):
            given["aclfile"] = file
        init(self, executable, given)

    return limited


def _as_admin(init):
    def entered(self, *args, **kwargs):
        named = {"username", "password", "connection_pool"} & set(kwargs)
        if not named and not _is_ours(sys._getframe(1)):
            kwargs |= ADMIN
        init(self, *args, **kwargs)

    return entered


def _from_url_as_admin(from_url):
    def entered(cls, url, **kwargs):
        if "@" not in url and "username" not in kwargs and not _is_ours(sys._getframe(1)):
            kwargs |= ADMIN
        return from_url(url, **kwargs)

    return classmethod(entered)


def pytest_configure(config):
    LocalRedis.__init__ = _with_users(LocalRedis.__init__, _users_file())
    redis.Redis.__init__ = _as_admin(redis.Redis.__init__)
    redis.Redis.from_url = _from_url_as_admin(redis.Redis.from_url)
    Server.client = _Clients()
