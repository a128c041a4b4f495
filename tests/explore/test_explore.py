"""The small explorations: every promise holds after every call, in every order to a small depth."""

import uuid

import pytest

from rmq_spark.protocol import scripts
from rmq_spark.protocol.calls import Call

from .explorer import ExploredServer, Explorer
from .slot_state import FAR, Header, Record, Slot, slot_of, values_of, view_of
from .worlds import WORLDS

# A world that has lost most of its calls would keep every promise.
STEPS_AT_LEAST = 1000


@pytest.fixture(scope="module")
def explored_server(redis_url):
    server = ExploredServer(redis_url, scripts._lua_folder())
    yield server
    server.close()


@pytest.fixture
def explore(explored_server):
    """Makes the explorer of a world, in keys of its own."""
    return lambda world: Explorer(explored_server, world, world.small_depth, f"{uuid.uuid4().hex}:")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_promise_holds_in_every_order(world, explore):
    tally = explore(world).run()
    assert tally.steps >= STEPS_AT_LEAST
    assert tally.states + tally.merged > tally.steps


def test_a_slot_that_is_put_back_reads_the_same(explored_server, explore):
    """Else states would drift apart, or merge, by what the explorer itself does."""
    slot = Slot(
        store=(("u", 3), ("v", 1000), ("w", FAR)),
        prepare=(("v", 1, 2, 1.0), ("x", 2, 16, 0.0), ("y", 1, 0, 2047.0)),
        retry=(("z", 1, True), ("zz", 16, False)),
        dead=("a", "x"),
        claims=(
            ("a:1:0", Record(1, 2, True, 2048)),
            ("a:1:1", Record(0, 1, False, 0)),
            ("b:7:15", Record(2, 0, False, 1)),
        ),
        first=(("a:1:0", b"some bytes"), ("b:7:15", b"\x91\xa41000")),
        headers=(("a", Header(2, 0, 1, 1, "m", True)), ("b", Header(1, 6, 7, 15))),
        epoch=3,
        turn=1,
        paused=True,
    )
    explorer = explore(WORLDS[0])
    [keys], now_ms = explorer.keys, explored_server.now_ms()
    dump = explored_server.replies(
        [Call("restore", keys, values_of(slot, now_ms, explored_server.id)), Call("dump", keys, ())]
    )[1]
    explored_server.command("UNLINK", *keys)
    assert slot_of(dump, turns=True, server_id=explored_server.id) == slot
    assert view_of(slot).held("a:1:0") == {"v": 2, "y": 0}
