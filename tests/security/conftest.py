"""Users as docs/security.md gives them, servers that speak TLS, and one Spark that tries it all."""

import datetime
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import servers
import trustme
from documented import ROOT, documented_users

from rmq_spark.local import LocalRedis, find_redis_server, free_port

sys.path.insert(0, str(ROOT / "tests" / "spark"))  # for its module driving
PREFIX = "shop:"
# With what an address must encode, and halves that are found nowhere by chance.
SECRET = "Tq8-first-half#/x%?@second-half-9Zk"
WRONG = "Wq7-no-password#/y%?@of-anybody-8Vm"
ADMIN = "Aq6-the-admins#/z%?@own-password-7Um"
KEY_SECRET = "Kq5-opens-the#/k%?@private-key-6Tm"


def permit(url, user, password=SECRET, without=""):
    """Makes a documented user on a server, less one command."""
    rules = [f">{password}" if rule.startswith(">") else rule for rule in documented_users()[user]]
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", user, *(r for r in rules if r != f"+{without}"))


def variants(secret):
    """A secret as it might be written somewhere: itself, encoded, either half."""
    halves = secret[: len(secret) // 2], secret[len(secret) // 2 :]
    return {text for part in (secret, *halves) for text in (part, quote(part, safe=""))}


def found_in(text, *secrets):
    return sorted(v for secret in secrets for v in variants(secret) if v in text)


class Authority:
    """A certificate authority that only these tests know, and what it signed."""

    def __init__(self, folder):
        self.folder = folder
        self._ca = trustme.CA()
        self.file = str(folder / f"ca-{id(self)}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def certificate(self, *names, **options):
        """A certificate with its key, in one file."""
        path = self.folder / f"{'-'.join(names)}-{len(list(self.folder.iterdir()))}.pem"
        self._ca.issue_cert(*names, **options).private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    def expired(self, name):
        start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        end = start + datetime.timedelta(days=1)
        return self.certificate(name, not_before=start, not_after=end)

    def settings(self, certificate, clients="no"):
        """How a server shows a certificate, beside its plain port."""
        return {
            "appendonly": "no",
            "tls-port": str(free_port()),
            "tls-cert-file": certificate,
            "tls-key-file": certificate,
            "tls-ca-cert-file": self.file,
            "tls-auth-clients": clients,
        }


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def speaks_tls(executable):
    """Whether a redis-server was built with TLS; one without knows no such setting."""
    done = subprocess.run(
        [executable, "--tls-port", "0", "--port", "0", "--maxclients", "none"],
        capture_output=True,
        text=True,
        check=False,
    )
    # All settings are read in order: what stops it is the first one that is wrong.
    return "maxclients" in done.stdout + done.stderr


@dataclass(frozen=True)
class Tried:
    """What a Spark that tried everything left behind."""

    outcomes: dict  # by attempt: what it counted, or the error and those behind it
    shown: dict  # by name: all that it printed, logged or wrote


@pytest.fixture(scope="session")
def tried(authority, tmp_path_factory):
    """One run of spark_program.py as the documented user, over TLS where the server can."""
    if not servers.executables():
        servers.do_without()
    folder = tmp_path_factory.mktemp("tried")
    executable = find_redis_server()
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
            "gone_port": free_port(),
        }
        return _run_program(given, folder)


def _run_program(given, folder):
    program = Path(__file__).with_name("spark_program.py")
    url = f"{given['scheme']}://rmq:{quote(SECRET, safe='')}@{given['address']}"
    environment = {
        **os.environ,
        "RMQ_REDIS_URL": url,
        "RMQ_TEST_SECRETS": json.dumps([SECRET, WRONG, ADMIN]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "spark")]),
    }
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        done = subprocess.run(
            [sys.executable, str(program), json.dumps(given)],
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
