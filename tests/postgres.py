"""A PostgreSQL server of one's own, as its own user, with the JDBC driver that Spark needs."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from rmq_spark.dev_servers.redis_server import free_port

USER, PASSWORD = "shop", "sesame open"
# Where Debian and others keep what is not on PATH.
BINARIES = ["/usr/lib/postgresql/*/bin", "/usr/local/opt/postgresql*/bin"]
DRIVERS = ["/usr/share/java/postgresql.jar", "/usr/share/java/postgresql-jdbc*.jar"]
SETTINGS = {"fsync": "off", "listen_addresses": "127.0.0.1", "max_connections": "50"}


def do_without(what: str) -> NoReturn:
    """Skips the test on a laptop, fails it in CI."""
    text = f"{what} was not found: 'apt-get install postgresql libpostgresql-jdbc-java'."
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def found_driver() -> str:
    """The path of the JDBC driver, for spark.jars; empty where there is none."""
    named = os.environ.get("RMQ_POSTGRESQL_JAR")
    found = [named] if named else [str(path) for pattern in DRIVERS for path in _glob(pattern)]
    return found[0] if found else ""


def driver() -> str:
    """The path of the JDBC driver; without one the test is skipped."""
    return found_driver() or do_without("PostgreSQL's JDBC driver")


def _glob(pattern: str) -> list[Path]:
    return sorted(Path("/").glob(pattern.lstrip("/")))


def _program(name: str) -> str:
    folders = [str(path) for pattern in BINARIES for path in _glob(pattern)]
    found = shutil.which(name, path=os.pathsep.join([*reversed(folders), os.environ["PATH"]]))
    return found or do_without(f"PostgreSQL's {name}")


class Postgres:
    """One server, gone with its data at the end. A context manager.

    It refuses to run as root: then it runs as the user postgres, which its package makes.
    """

    table_options = ""
    # How many sessions wait for a lock of another one.
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def __init__(self) -> None:
        self.port = free_port()
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    @property
    def url(self) -> str:
        """For JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> "Postgres":
        self._folder = Path(tempfile.mkdtemp(prefix="rmq-postgres-"))
        if self._as:
            os.chown(self._folder, pwd.getpwnam("postgres").pw_uid, -1)
        data, secret = self._folder / "data", self._folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            *(_program("initdb"), "-D", data, "-U", USER, "--pwfile", secret),
            *("-A", "scram-sha-256", "-E", "UTF8", "--locale", "C.UTF-8"),
        )
        settings = {**SETTINGS, "port": self.port, "unix_socket_directories": self._folder}
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        log = self._folder / "log"
        self._run(_program("pg_ctl"), "-D", data, "-l", log, "-w", "-o", options, "start")
        return self

    def __exit__(self, *_: object) -> None:
        self._run(_program("pg_ctl"), "-D", self._folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(self._folder)

    def sql(self, sql: str) -> list[list[str]]:
        """Runs statements, as every database of the tests does."""
        return self.psql(sql)

    def psql(self, sql: str) -> list[list[str]]:
        """Runs statements, and returns the rows of the queries among them as texts."""
        done = subprocess.run(
            [*self.psql_command, "-c", sql],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]

    @property
    def psql_command(self) -> list[str]:
        """psql, with ``environment`` on this server; without arguments it reads statements."""
        return [_program("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]

    @property
    def variables(self) -> dict[str, str]:
        """What tells psql and the jobs how to log in."""
        return {
            **{"RMQ_JDBC_URL": self.url, "RMQ_JDBC_USER": USER, "RMQ_JDBC_PASSWORD": PASSWORD},
            **{"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGDATABASE": "postgres"},
            **{"PGUSER": USER, "PGPASSWORD": PASSWORD},
        }

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process, and these."""
        return {**os.environ, **self.variables}

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [*self._as, *map(str, command)],
            stdout=subprocess.DEVNULL,  # the server keeps it open, so it must be no pipe
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=120,
        )
        assert done.returncode == 0, command
