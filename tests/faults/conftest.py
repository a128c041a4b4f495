"""Faults on one server: what depends on its version, tests/lua and tests/client try."""

from .. import on_newest

redis_executable, redis_url, server = on_newest.fixtures()
