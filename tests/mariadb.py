"""A MariaDB server of one's own, as its own user, with the JDBC driver that Spark needs."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from rmq_spark.local.redis import free_port

from . import missing

USER, PASSWORD, SHOP = "shop", "sesame open", "shop"
# Where Debian and others keep what is not on PATH.
FOLDERS = ["/usr/sbin", "/usr/local/sbin", "/usr/local/opt/mariadb/bin"]
DRIVERS = ["/usr/share/java/mariadb-java-client.jar"]
# The defaults that servers may have and that are the worst for a job.
SETTINGS = {
    "sql-mode": "",
    "default-storage-engine": "MyISAM",
    "character-set-server": "latin1",
    "explicit-defaults-for-timestamp": "OFF",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-lock-wait-timeout": "30",
    "bind-address": "127.0.0.1",
}
BEGIN_S = 60


def do_without() -> NoReturn:
    """Skip the test that needs it, or fail it in CI."""
    missing.do_without("MariaDB", "apt-get install mariadb-server libmariadb-java")


def found_driver() -> str:
    """The path of the JDBC driver, for spark.jars; empty where there is none."""
    named = os.environ.get("RMQ_MARIADB_JAR")
    return named or next((path for path in DRIVERS if Path(path).exists()), "")


def driver() -> str:
    """The path of the JDBC driver; without one the test is skipped."""
    return found_driver() or do_without()


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *FOLDERS]))
    return found or do_without()


class MariaDB:
    """One server, gone with its data at the end. A context manager.

    Where the tests run as root, it runs as the user mysql, which its package makes.
    """

    table_options = " ENGINE=InnoDB"
    # How many sessions wait for a lock of another one.
    waiting = (
        "SELECT (SELECT count(*) FROM information_schema.PROCESSLIST WHERE state LIKE 'Waiting for "
        "table metadata lock%') + (SELECT CAST(variable_value AS INT) FROM "
        "information_schema.GLOBAL_STATUS WHERE variable_name = 'Innodb_row_lock_current_waits')"
    )

    def __init__(self) -> None:
        self.port = free_port()
        self._as = ["--user=mysql"] if os.geteuid() == 0 else []

    @property
    def url(self) -> str:
        """For JDBC."""
        return f"jdbc:mariadb://127.0.0.1:{self.port}/{SHOP}"

    def __enter__(self) -> "MariaDB":
        install, server = _program("mariadb-install-db"), _program("mariadbd")
        self._client = _program("mariadb")
        self._folder = Path(tempfile.mkdtemp(prefix="rmq-mariadb-"))
        if self._as:
            os.chown(self._folder, pwd.getpwnam("mysql").pw_uid, -1)
        data = f"--datadir={self._folder / 'data'}"
        done = subprocess.run(
            [install, "--no-defaults", *self._as, data, "--auth-root-authentication-method=normal"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        settings = {
            **SETTINGS,
            "port": self.port,
            "socket": self._folder / "socket",
            "pid-file": self._folder / "pid",
            "log-error": self._folder / "log",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._server = subprocess.Popen(
            [server, "--no-defaults", *self._as, data, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()
        shutil.rmtree(self._folder)

    def _wait(self) -> None:
        """Until the server answers and has the user."""
        make = (
            "DELETE FROM mysql.global_priv WHERE user = ''; FLUSH PRIVILEGES; "
            f"CREATE DATABASE {SHOP}; CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; "
            f"GRANT ALL ON {SHOP}.* TO {USER}@'%'"
        )
        as_root = [self._client, "--no-defaults", "-u", "root", "-S", self._folder / "socket"]
        end = time.monotonic() + BEGIN_S
        while (done := subprocess.run(as_root, input=b"", capture_output=True)).returncode:
            assert self._server.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < end, done.stderr
            time.sleep(0.1)
        subprocess.run([*as_root, "-e", make], check=True, timeout=60)

    def sql(self, sql: str) -> list[list[str]]:
        """Runs statements, and returns the rows of the queries among them as texts."""
        done = subprocess.run(
            [
                *(self._client, "--no-defaults", "-h", "127.0.0.1", "-P", str(self.port)),
                *("-u", USER, "--default-character-set=utf8mb4", "-N", "-B", "--raw", SHOP),
            ],
            input=sql,
            env={**os.environ, "MYSQL_PWD": PASSWORD},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    @property
    def variables(self) -> dict[str, str]:
        """What tells the jobs how to log in."""
        return {
            "RMQ_JDBC_URL": self.url,
            "RMQ_JDBC_USER": USER,
            "RMQ_JDBC_PASSWORD": PASSWORD,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process, and these."""
        return {**os.environ, **self.variables}
