"""The explorer finds faults: each of these, put into a copy of lua/, breaks a promise."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_spark.protocol import scripts

from .. import servers
from . import promises
from .explorer import ExploredServer, Explorer, PromiseBroken
from .worlds import BACKOFF, EXCLUSIVE, FORGETTING, PAUSING, RETRIES, SLOTS, World

FOLDER = Path(str(scripts._lua_folder()))
DEPTH = 4  # none needs more; the search ends at the first broken promise


@dataclass(frozen=True, repr=False)
class Fault:
    """What is wrong, where, the text that is right and the one that is not, and who sees it."""

    name: str
    file: str
    right: str
    wrong: str
    world: World
    promise: Callable[[promises.Step], bool]


FAULTS = (
    Fault(
        "a commit does not ask for its run",
        "commit",
        "if refused then return refused end",
        "",
        RETRIES,
        promises.older_runs_take_nothing,
    ),
    Fault(
        "a server that fell back makes a forgotten claim anew",
        "claim",
        "header.mark ~= planned or",
        "",
        FORGETTING,
        promises.only_what_was_planned_is_claimed,
    ),
    Fault(
        "another server makes the claims of a plan",
        "claim",
        "or header.server ~= server_id()",
        "",
        FORGETTING,
        promises.only_what_was_planned_is_claimed,
    ),
    Fault(
        "a paused slot makes claims",
        "claim",
        "if header.paused then",
        "if false then",
        PAUSING,
        promises.a_paused_slot_makes_no_claim,
    ),
    Fault(
        "a claim that was not made for a pause is made later",
        "claim",
        "header.mark = NO_PLAN",
        "",
        PAUSING,
        promises.only_what_was_planned_is_claimed,
    ),
    Fault(
        "those who ask what is due are not told of a pause",
        "due",
        "local held = paused or",
        "local held =",
        PAUSING,
        promises.what_is_due_is_counted,
    ),
    Fault(
        "an empty claim leaves no record",
        "claim",
        "write_record(slot.claims, claim)",
        "if claim.count > 0 then write_record(slot.claims, claim) end",
        RETRIES,
        promises.claims_are_kept,
    ),
    Fault(
        "a replay pops",
        "claim",
        "if not record and (replay_only or",
        "if not record and (",
        RETRIES,
        promises.claims_never_grow,
    ),
    Fault(
        "a lost claim is made again",
        "claim",
        "seq == header.last_seq and ordinal <= header.last_ordinal",
        "false",
        BACKOFF,
        promises.claims_never_grow,
    ),
    Fault(
        "what comes back overwrites what was sent again",
        "include/giveback",
        "#again / 2 - zadd(slot.store, 'NX', again)",
        "#again / 2 - zadd(slot.store, 'CH', again)",
        RETRIES,
        promises.scores_stay,
    ),
    Fault(
        "a new run reads for nothing",
        "include/redeliver",
        "record.run > 0 and record.run < run",
        "false",
        RETRIES,
        promises.a_delivery_costs_one,
    ),
    Fault(
        "a settled batch claims",
        "claim",
        "if seq <= header.settled then",
        "if false then",
        RETRIES,
        promises.older_runs_take_nothing,
    ),
    Fault(
        "a claim gives back what its own batch holds",
        "claim",
        "other.consumer ~= consumer or other.seq == seq",
        "other.consumer ~= consumer",
        RETRIES,
        promises.claims_are_kept,
    ),
    Fault(
        "a replay does not bar the run before",
        "replay",
        "header.run, header.seen = run, now",
        "header.seen = now",
        SLOTS,
        promises.older_runs_take_nothing,
    ),
    Fault(
        "a claim takes what another one holds",
        "include/take",
        "if added == #items / 2 then return items end",
        "if true then return items end",
        RETRIES,
        promises.nothing_waiting_is_lost,
    ),
    Fault(
        "an older run rolls back what a newer one has read",
        "rollback",
        "record.run ~= run or",
        "",
        RETRIES,
        promises.older_runs_roll_back_nothing,
    ),
    Fault(
        "a release ends the leases of others",
        "include/deadlines",
        "if record.consumer == consumer and",
        "if true and",
        RETRIES,
        promises.leases_are_the_consumers_own,
    ),
    Fault(
        "an exclusive slot is shared",
        "claim",
        "other.consumer ~= consumer and held_messages",
        "false and held_messages",
        EXCLUSIVE,
        promises.an_exclusive_slot_has_one_consumer,
    ),
    Fault(
        "a wait goes on beside what was sent again",
        "include/giveback",
        "  if stored then",
        "  if false then",
        BACKOFF,
        promises.each_is_in_its_place,
    ),
)


@pytest.fixture(scope="module")
def redis():
    found = servers.executables()
    if not found:
        servers.do_without()
    with servers.local(next(iter(found.values()))) as one:
        yield one


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_explorer_finds(fault, redis, tmp_path):
    lua = tmp_path / "lua"
    shutil.copytree(FOLDER, lua)
    faulty = lua / f"{fault.file}.lua"
    text = faulty.read_text()
    assert text.count(fault.right) == 1, "the text is not there exactly once: the fault is nowhere"
    faulty.write_text(text.replace(fault.right, fault.wrong))
    server = ExploredServer(redis.url, lua)
    with pytest.raises(PromiseBroken) as broken:
        Explorer(server, fault.world, DEPTH, f"{tmp_path.name}:").run()
    server.close()
    assert broken.value.promise is fault.promise, str(broken.value)
