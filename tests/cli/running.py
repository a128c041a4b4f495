"""The command as a program of its own, and what tests ask of it."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass

from rmq_spark.client import Broker

from .forking import ANSWER_S, shared

COMMAND = [sys.executable, "-m", "rmq_spark.cli"]


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class Rmq:
    """Runs the command under a key prefix of the test's own."""

    def __init__(self, url, server):
        self.url = url
        self.prefix = f"{uuid.uuid4().hex}:"
        self.broker = Broker(server, key_prefix=self.prefix)

    def __call__(self, *arguments, stdin="", url=None, **environment):
        words = [*self.command(url)[len(COMMAND) :], *arguments]
        return self._run(words, stdin, COLUMNS="80", **environment)

    def _run(self, words, stdin="", **environment):
        given = stdin.encode() if isinstance(stdin, str) else stdin
        code, out, err = shared().run(words, given, {**os.environ, **environment})
        return Done(code, out.decode(), err.decode())

    def begin(self, *arguments, **environment):
        """Runs it in a Python of its own, which reads its settings from the environment."""
        done = subprocess.run(
            [*self.command(), *arguments],
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
            env={**os.environ, **environment},
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def command(self, url=None):
        return [*COMMAND, "--redis-url", url or self.url, "--key-prefix", self.prefix]

    @property
    def typed(self):
        """How commands begin in the texts that recommend them."""
        return f"rmq --redis-url {self.broker.server.address} --key-prefix {self.prefix}"

    def type(self, line):
        """Runs a command line that a text recommends, as a user's shell would."""
        _, *words = shlex.split(line)
        return self._run(words)

    def topic(self, name="Orders", topic_type="FixedTime", slots=4, **settings):
        self.broker.create(name, topic_type, slots, **settings)
        return self.broker.queue(name)


@contextmanager
def started(command, **options):
    """A command that runs beside the test, and never longer than it.

    It minds Ctrl-C also where this process does not, such as in the background of a script.
    """
    process = subprocess.Popen(
        command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def on_a_terminal(command, columns=80):
    """What a command writes to a terminal."""
    terminal, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns)}
    with started(command, stdout=other, stdin=other, stderr=other, env=environment) as process:
        os.close(other)
        shown = b""
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:
            pass  # Linux says so when the other end is closed
        assert process.wait(timeout=60) == 0
    os.close(terminal)
    return shown


def bury(queue, *contents):
    """Puts contents into the dead queue of their slots."""
    for number, content in enumerate(contents):
        slot = queue.definition.slot_of(content)
        queue.server.client.zadd(queue.keys.dead(slot), {content: 1_000 + number})
