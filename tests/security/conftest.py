"""Users as docs/security.md gives them, servers that speak TLS, and one Spark that tries it all."""

import json
import subprocess
from dataclasses import dataclass
from urllib.parse import quote

import pytest
import redis

from rmq_spark.local.redis import LocalRedis

from .. import programs, quick_spark, servers
from ..certificates import speaks_tls
from ..servers import NOBODYS_PORT
from .credentials import ADMIN, SECRET, WRONG, permit


@dataclass(frozen=True)
class Tried:
    """What a Spark that tried everything left behind."""

    outcomes: dict  # by attempt: what it counted, or the error and those behind it
    shown: dict  # by name: all that it printed, logged or wrote


@pytest.fixture(scope="session")
def tried(authority, tmp_path_factory):
    """One run of spark_program.py as the documented user, over TLS where the server can."""
    folder = tmp_path_factory.mktemp("tried")
    executable = servers.newest()
    tls = speaks_tls(executable)
    settings = authority.settings(authority.certificate("127.0.0.1")) if tls else {}
    with LocalRedis(executable, {"appendonly": "no", **settings}) as server:
        permit(server.url, "rmq")
        with redis.Redis.from_url(server.url) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">{ADMIN}")
        scheme, port = ("rediss", settings["tls-port"]) if tls else ("redis", server.port)
        given = {
            "folder": str(folder),
            "address": f"127.0.0.1:{port}/0",
            "scheme": scheme,
            "options": {"redis.sslCaCerts": authority.file} if tls else {},
            "admin_port": server.port,
            "gone_port": NOBODYS_PORT,
        }
        return _run_program(given, folder)


def _run_program(given, folder):
    url = f"{given['scheme']}://rmq:{quote(SECRET, safe='')}@{given['address']}"
    environment = programs.environment(
        RMQ_REDIS_URL=url,
        RMQ_TEST_SECRETS=json.dumps([SECRET, WRONG, ADMIN]),
        **quick_spark.java_variables(),
    )
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        done = subprocess.run(
            programs.command("security.spark_program", json.dumps(given)),
            env=environment,
            stdout=out,
            stderr=err,
            timeout=840,
            check=False,
        )
    shown = {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8", errors="replace")
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in (".crc", ".parquet")
    }
    assert done.returncode == 0, shown["stderr"][-3000:]
    return Tried(json.loads((folder / "outcomes.json").read_text()), shown)
