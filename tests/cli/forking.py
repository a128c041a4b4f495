"""Commands in processes of their own, forked from one that has imported them already.

To import them for each of a thousand commands would take longer than all the rest.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rmq_spark.cli.__main__ import main

from .. import programs

ANSWER_S = 200


class ForkServer:
    """A process that forks for each command."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rmq-fork-")
        self._path = str(Path(self._folder.name, "socket"))
        self._process = subprocess.Popen(
            [*programs.command("cli.forking"), self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """Kill it, and every command that still runs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self, arguments: Sequence[str | bytes], stdin: bytes, environment: dict[str, str]
    ) -> tuple[int, bytes, bytes]:
        """Run a command. Returns its exit code, and what it wrote to stdout and stderr."""
        words = list(map(os.fsdecode, arguments))
        asked = {"arguments": words, "environment": environment, "folder": str(Path.cwd())}
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            given.write(stdin)
            given.seek(0)
            connection.settimeout(ANSWER_S)
            connection.connect(self._path)
            socket.send_fds(connection, [b"!"], [each.fileno() for each in (given, out, err)])
            connection.sendall(json.dumps(asked).encode())
            connection.shutdown(socket.SHUT_WR)
            code = int(connection.recv(16))
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


@functools.cache
def shared() -> ForkServer:
    """Return the one of this process, which ends with it."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def serve(path: str) -> None:
    """Answer every connection in a process of its own."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    print("ready", flush=True)  # noqa: T201
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none of the children is waited for
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer(connection)
            os._exit(0)
        connection.close()


def answer(connection: socket.socket) -> None:
    """Run the command that the other side names, and send its exit code."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        asked = json.loads(stream.read())
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, connection.fileno() + len(files) + 1)
        os.environ.clear()
        os.environ.update(asked["environment"])
        time.tzset()
        os.chdir(asked["folder"])
        sys.argv[1:] = asked["arguments"]
        os._exit(main())
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    import rmq_spark.cli.app  # noqa: F401 - what all commands need

    serve(sys.argv[1])
