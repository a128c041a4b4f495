"""The small explorations: every promise holds after every call, in every order to a small depth."""

import uuid

import pytest

from rmq_spark.protocol import scripts
from rmq_spark.protocol.calls import Call

from .explorer import ExploredServer, Explorer, PromiseBroken
from .slot_state import FAR, Copy, Header, Record, Slot, slot_of, values_of, view_of
from .worlds import KEYED, WORLDS

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
        retry=(("z", 1, True), ("zz", 16, False)),
        dead=("a", "x"),
        claims=(
            ("a:1:0", Record(2, True, sealed=8192, held=2, max_retries=1, charged=1, replayed=2)),
            ("a:1:1", Record(1, False, sealed=0, held=0, max_retries=1, latest=True)),
            ("b:1:0", Record(0, False, sealed=1, held=1, max_retries=16)),
        ),
        held=(
            ("a:1:0", (("y", 1), ("v", 2), ("t", 1000))),
            ("a:2:0", (("stray", 1000),)),
            ("b:1:0", (("x", 1000),)),
        ),
        part=(("p", 5),),
        headers=(("a", Header(2, 0, 1, 1, "m", True)), ("b", Header(1, 6, 7, 15))),
        epoch=3,
        turn=1,
        paused=True,
    )
    explorer = explore(WORLDS[0])
    assert "b:2:0" in explorer.names[0]  # no claim in this slot
    assert put_back_and_read(explored_server, explorer, slot) == slot
    assert list(view_of(slot).held("a:1:0").items()) == [("y", 0), ("v", 0), ("t", 0)]
    assert view_of(slot).held("b:1:0") == {"x": 16}


def test_a_keyed_slot_that_is_put_back_reads_the_same(explored_server, explore):
    slot = Slot(
        store=(("v", 1000),),
        retry=(("z", 1, True),),
        dead=("x", "y"),
        claims=(("a:1:0", Record(1, True, sealed=3, held=1, max_retries=1)),),
        held=(("a:1:0", (("x", 1000),)),),
        bodies=(("v", Copy("1", requeued=True)), ("z", Copy("a 2\n,", FAR))),
        claim_bodies=(("a:1:0", (("x", Copy("")),)),),
        dead_bodies=(("x", Copy("3", FAR)), ("y", None)),
    )
    assert put_back_and_read(explored_server, explore(KEYED), slot) == slot
    view = view_of(slot)
    assert view.held_body("x") == Copy("")
    assert view.copies("x") == {None, Copy(""), Copy("3", FAR)}


def put_back_and_read(server, explorer, slot):
    [keys], [names], [before_bodies] = explorer.keys, explorer.names, explorer.before_bodies
    values = values_of(slot, names, server.now_ms(), server.id, explorer.world.topic)
    calls = [Call("restore", keys, values), Call("dump", keys, [before_bodies])]
    dump = server.replies(calls)[1]
    server.command("UNLINK", *keys)
    return slot_of(dump, names, turns=True, server_id=server.id)


def test_a_key_of_which_nobody_was_told_is_found(explored_server, explore):
    explorer = explore(WORLDS[0])
    strange = explorer.calls.keys.claim(0, "stray:1:0")
    explored_server.command("ZADD", strange, 1, "m")
    with pytest.raises(PromiseBroken, match="stray:1:0"):
        explorer.check_keys()
    explored_server.command("UNLINK", strange)
    explorer.check_keys()
