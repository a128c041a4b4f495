"""A PostgreSQL server of one's own, as its own user, with the JDBC driver that Spark needs."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rmq_spark.local.redis import free_port

from . import missing
from .waiting import wait_until

USER, PASSWORD = "shop", "sesame open"
# Where Debian and others keep what is not on PATH.
BINARIES = ["/usr/lib/postgresql/*/bin", "/usr/local/opt/postgresql*/bin"]
DRIVERS = ["/usr/share/java/postgresql.jar", "/usr/share/java/postgresql-jdbc*.jar"]
SETTINGS = {"fsync": "off", "listen_addresses": "127.0.0.1", "max_connections": "50"}


def do_without() -> NoReturn:
    """Skip the test that needs it, or fail it in CI."""
    missing.do_without("PostgreSQL", "apt-get install postgresql libpostgresql-jdbc-java")


def found_driver() -> str:
    """The path of the JDBC driver, for spark.jars; empty where there is none."""
    named = os.environ.get("RMQ_POSTGRESQL_JAR")
    found = [named] if named else [str(path) for pattern in DRIVERS for path in _glob(pattern)]
    return found[0] if found else ""


def driver() -> str:
    """The path of the JDBC driver; without one the test is skipped."""
    return found_driver() or do_without()


def _glob(pattern: str) -> list[Path]:
    return sorted(Path("/").glob(pattern.lstrip("/")))


def _program(name: str) -> str:
    folders = [str(path) for pattern in BINARIES for path in _glob(pattern)]
    found = shutil.which(name, path=os.pathsep.join([*reversed(folders), os.environ["PATH"]]))
    return found or do_without()


def _as_postgres() -> list[str]:
    """How a command begins that runs as the user postgres, which the package makes."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


class Postgres:
    """One server, gone with its data at the end. A context manager.

    It refuses to run as root: then it runs as the user postgres, which its package makes.
    """

    table_options = ""
    # How many sessions wait for a lock of another one.
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def __init__(self) -> None:
        self.port = free_port()
        self._as = _as_postgres()

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


@contextmanager
def pgbouncer(server: Postgres, mode: str, **settings: object) -> Iterator[str]:
    """A pooler in front of a server, with two sessions; yields its url, as for JDBC."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    program = program or missing.do_without("PgBouncer", "apt-get install pgbouncer")
    port = free_port()
    given = {
        **{"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": ""},
        **{"auth_type": "scram-sha-256", "pool_mode": mode, "default_pool_size": 2, **settings},
    }
    with tempfile.TemporaryDirectory(prefix="rmq-pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
        lines = [f"{name} = {value}" for name, value in given.items()]
        (folder / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nauth_file = {folder / 'users'}\n" + "\n".join(lines)
        )
        command = [*_as_postgres(), program, "-q", str(folder / "ini")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: _answers(port), "PgBouncer listens")
                yield f"jdbc:postgresql://127.0.0.1:{port}/postgres"
            finally:
                process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
