"""The tests of the scripts bite: each of mutants.py, put into a copy of lua/, makes one fail."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
import redis

from rmq_spark.protocol import scripts

from .. import ROOT, servers
from .mutants import FOLDER, MUTANTS, Mutant

PATIENCE_S = 120
# What takes longest of a run is to import these: it is done once.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["pytest", "hypothesis", "kazoo.client", "trustme", "rmq_spark.client"]
)


def run_pytest(arguments, handed, printed):
    """Run tests in this process, which a fork server has made, and end it with their exit code."""
    os.environ[servers.HANDED] = handed
    os.chdir(ROOT)
    with printed.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.exit(pytest.main(arguments))


def outcome_of(mutant, folder, handed):
    """Return the exit code of the tests that should see the fault, and what they printed."""
    faulty, printed = mutant.put_into_a_copy(folder), folder / "printed"
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in mutant.tests.split()]
    # Nobody reads why a test failed; explaining it takes longer than the tests.
    quietly = ["-x", "-q", "--tb=no", "--assert=plain", "--lua-dir", str(faulty)]
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "xdist")]
    run = FORKED.Process(target=run_pytest, args=([*quietly, *without, *files], handed, printed))
    run.start()
    run.join(PATIENCE_S)
    run.kill()
    run.join()
    return run.exitcode, printed.read_text(errors="replace")[-3000:]


class Server:
    """One running server for all mutants; another one when a fault left it in an endless loop."""

    def __init__(self):
        found = servers.executables()
        self._executable = next(iter(found.values())) if found else servers.do_without()
        self._redis = servers.start(self._executable)

    def handed(self):
        """Return its executable and its address, as the tests of a mutant take them."""
        if self.is_stuck():
            self._redis.kill()  # in a loop it would not hear that it is to stop
            self._redis.close()
            self._redis = servers.start(self._executable)
        return f"{self._executable} {self._redis.url}"

    def is_stuck(self):
        with redis.Redis.from_url(self._redis.url, socket_timeout=30) as client:
            try:
                client.dbsize()  # PING is answered in a loop too
            except (redis.exceptions.ResponseError, redis.exceptions.TimeoutError):
                return True
        return False

    def close(self):
        self._redis.close()


@pytest.fixture(scope="module")
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture
def handed(server):
    return server.handed()


@pytest.mark.long(every=25)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.label)
def test_a_fault_makes_a_test_fail(mutant, handed, tmp_path):
    code, printed = outcome_of(mutant, tmp_path, handed)
    assert code == 1, f"exit code {code}\n{printed}"


@pytest.mark.long
def test_without_a_fault_none_fails(handed, tmp_path):
    code, printed = outcome_of(Mutant("alter.lua", "", "", "alter"), tmp_path, handed)
    assert code == 0, printed


@pytest.mark.long
def test_a_fault_that_never_ends_leaves_the_others_a_server(server, tmp_path):
    """Else their tests would fail by the server, not by their own fault."""
    endless = Mutant("alter.lua", "redis.call('HDEL', hash, field)", "while true do end", "alter")
    code, printed = outcome_of(endless, tmp_path, server.handed())
    assert code == 1, printed
    assert server.is_stuck()
    server.handed()
    assert not server.is_stuck()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.label)
def test_the_right_text_is_there_exactly_once(mutant):
    """Else the fault is somewhere else than meant, or nowhere."""
    assert (FOLDER / mutant.file).read_text().count(mutant.right) == 1


@pytest.mark.parametrize("name", scripts.script_names(FOLDER))
def test_every_script_has_mutants(name):
    assert sum(mutant.file == f"{name}.lua" for mutant in MUTANTS) >= 2
