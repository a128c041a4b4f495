"""The explorer finds faults: each named one of mutants.py, in a copy of lua/, breaks a promise."""

import pytest

from .. import servers
from ..lua.mutants import MUTANTS
from .explorer import ExploredServer, Explorer, PromiseBroken

DEPTH = 4  # none needs more; the search ends at the first broken promise


@pytest.fixture(scope="module")
def redis():
    found = servers.executables()
    if not found:
        servers.do_without()
    with servers.local(next(iter(found.values()))) as one:
        yield one


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if mutant.world],
    ids=lambda mutant: mutant.name,
)
def test_the_explorer_finds(mutant, redis, tmp_path):
    server = ExploredServer(redis.url, mutant.put_into_a_copy(tmp_path))
    with pytest.raises(PromiseBroken) as broken:
        Explorer(server, mutant.world, DEPTH, f"{tmp_path.name}:").run()
    server.close()
    assert broken.value.promise is mutant.promise, str(broken.value)
