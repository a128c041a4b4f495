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
from .worlds import (
    BACKOFF,
    EXCLUSIVE,
    FIRST_STAYS,
    FORGETTING,
    KEYED,
    PAUSING,
    PLAIN,
    PRIORITY,
    REQUEUED,
    RETRIES,
    SLOTS,
    SUSPECTS,
    World,
)

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
        "a delay counts backwards",
        "include/dated",
        "text_of(now - score)",
        "text_of(now + score)",
        BACKOFF,
        promises.what_is_delayed_waits,
    ),
    Fault(
        "a message that waits keeps its due time when it is sent with a delay",
        "include/store",
        "redis.call('ZADD', store, messages.values())",
        "redis.call('ZADD', store, 'NX', messages.values())",
        BACKOFF,
        promises.what_is_delayed_waits,
    ),
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
        "include/headers",
        "paused_until = until_of(found[2])",
        "paused_until = 0",
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
        "local held = paused_until > now or",
        "local held =",
        PAUSING,
        promises.what_is_due_is_counted,
    ),
    Fault(
        "an empty claim leaves no record",
        "claim",
        "write_record(slot.claims, {name = name,",
        "(taken > 0 and write_record or type)(slot.claims, {name = name,",
        RETRIES,
        promises.claims_are_kept,
    ),
    Fault(
        "a replay pops",
        "claim",
        "if not record and (replay_only or seq",
        "if not record and (seq",
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
        "include/returning",
        "return #scored / 2 - zadd(target, 'NX', scored) end",
        "return #scored / 2 - zadd(target, 'CH', scored) end",
        RETRIES,
        promises.scores_stay,
    ),
    Fault(
        "a new run reads for nothing",
        "claim",
        "if record.run > 0 and record.run < run then",
        "if false then",
        RETRIES,
        promises.a_delivery_costs_one,
    ),
    Fault(
        "a new run reads for two",
        "claim",
        "record.charged = record.charged + 1",
        "record.charged = record.charged + 2",
        EXCLUSIVE,
        promises.a_delivery_costs_one,
    ),
    Fault(
        "what replays have cost comes back",
        "include/records",
        "math.max(0, at_first - record.charged)",
        "math.max(0, at_first)",
        RETRIES,
        promises.nothing_in_flight_is_lost,
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
        "a claim is given back during its lease",
        "give_back",
        "record.deadline > now or",
        "",
        RETRIES,
        promises.claims_are_kept,
    ),
    Fault(
        "an empty claim is forgotten when it is given back",
        "give_back",
        "or record.held == 0",
        "",
        RETRIES,
        promises.claims_are_kept,
    ),
    Fault(
        "a message that was given back stays in its claim",
        "give_back",
        "redis.call('UNLINK', claim, of_claim)",
        "redis.call('UNLINK', of_claim)",
        RETRIES,
        promises.each_is_in_its_place,
    ),
    Fault(
        "the record of a claim that was given back stays",
        "give_back",
        "redis.call('HDEL', slot.claims, name)",
        "",
        RETRIES,
        promises.records_tell_what_is_held,
    ),
    Fault(
        "what nobody got costs a retry",
        "give_back",
        "return_uncharged(slot, record, items, bodies)",
        "return_messages(slot, terms, record, items, bodies, now, function() return '' end)",
        BACKOFF,
        promises.only_deliveries_cost,
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
        "for _, other in ipairs(others) do",
        "for _, other in ipairs({}) do",
        RETRIES,
        promises.each_is_in_its_place,
    ),
    Fault(
        "a claim does not notice what was sent",
        "claim",
        "'HMGET', slot.stats, 'accepted', 'rolledBack'",
        "'HMGET', slot.stats, 'none', 'rolledBack'",
        RETRIES,
        promises.who_names_too_few_is_told,
    ),
    Fault(
        "what another claim holds as well is lost",
        "include/take",
        "redis.call('ZADD', store, 'NX', unpack(scored))",
        "",
        RETRIES,
        promises.nothing_waiting_is_lost,
    ),
    Fault(
        "what another claim holds as well gets another score",
        "include/take",
        "scored[2 * k] = score,",
        "scored[2 * k] = score + 1,",
        RETRIES,
        promises.scores_stay,
    ),
    Fault(
        "a part of a claim is left",
        "include/take",
        "redis.call('UNLINK', part)",
        "",
        PRIORITY,
        promises.records_tell_what_is_held,
    ),
    Fault(
        "a part of a claim replaces what it has",
        "include/take",
        "and claim or part",
        "and claim or claim",
        PRIORITY,
        promises.nothing_waiting_is_lost,
    ),
    Fault(
        "the lowest priority is copied, the highest removed",
        "include/take",
        "rank, last, 'REV')",
        "rank, last)",
        PRIORITY,
        promises.nothing_waiting_is_lost,
    ),
    Fault(
        "a claim is made that was not told of others",
        "claim",
        "if #keys < #reply - 1 then return nil, reply end",
        "",
        RETRIES,
        promises.each_is_in_its_place,
    ),
    Fault(
        "a claim that was not told of others leaves a trace",
        "claim",
        "if not others then return",
        "if not others then\n    header.run = run\n    write_header(consumers, header)\n    return",
        RETRIES,
        promises.who_names_too_few_is_told,
    ),
    Fault(
        "an empty claim must be named",
        "claim",
        "if other.held > 0 and other.arrivals ~= arrived then\n      reply",
        "if other.arrivals ~= arrived then\n      reply",
        RETRIES,
        promises.who_names_too_few_is_told,
    ),
    Fault(
        "a commit forgets a claim that it was not told",
        "commit",
        "if record.held == 0 or key then\n      if record.held > 0 then",
        "if true then\n      if key and record.held > 0 then",
        RETRIES,
        promises.nothing_in_flight_is_lost,
    ),
    Fault(
        "a commit keeps to itself what it has left",
        "commit",
        "left[#left + 1] = record.name",
        "",
        RETRIES,
        promises.a_commit_names_what_it_leaves,
    ),
    Fault(
        "what is committed stays in its claim",
        "commit",
        "redis.call('UNLINK', key, bodies_of[record.name])",
        "",
        RETRIES,
        promises.each_is_in_its_place,
    ),
    Fault(
        "a rollback is not in the record",
        "rollback",
        "record.held = record.held - #taken",
        "",
        RETRIES,
        promises.records_tell_what_is_held,
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
        "a consumer that leaves claims its batch later",
        "abandon",
        "header.settled = math.max(header.settled, header.last_seq, seq)",
        "",
        PLAIN,
        promises.older_runs_take_nothing,
    ),
    Fault(
        "a consumer that leaves keeps its leases",
        "abandon",
        "record.deadline = (has_failed or record.run < run) and LOST or LONG_PAST",
        "",
        PLAIN,
        promises.leases_are_the_consumers_own,
    ),
    Fault(
        "a consumer that leaves does not bar the run before",
        "abandon",
        "header.run, header.seen = run, now_ms()",
        "header.seen = now_ms()",
        PLAIN,
        promises.older_runs_take_nothing,
    ),
    Fault(
        "a consumer that leaves forgets what it holds",
        "abandon",
        "if record.consumer == consumer and record.held == 0 then",
        "if record.consumer == consumer then",
        PLAIN,
        promises.nothing_in_flight_is_lost,
    ),
    Fault(
        "a consumer that leaves is not told of its claims",
        "abandon",
        "names[#names + 1] = record.name",
        "",
        PLAIN,
        promises.who_leaves_names_what_it_holds,
    ),
    Fault(
        "a claim is listed as expired during its lease",
        "expire",
        "if record.deadline <= now then",
        "if true then",
        RETRIES,
        promises.what_has_expired_is_listed,
    ),
    Fault(
        "those who ask what is due are not told what has expired",
        "due",
        "expired[#expired + 1] = record.name",
        "",
        SLOTS,
        promises.what_has_expired_is_listed,
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
        "other.consumer ~= consumer and other.held > 0",
        "false and other.held > 0",
        EXCLUSIVE,
        promises.an_exclusive_slot_has_one_consumer,
    ),
    Fault(
        "a requeue leaves the reason behind",
        "requeue",
        "redis.call('HDEL', deaths, unpack(found))",
        "",
        RETRIES,
        promises.the_dead_tell_why,
    ),
    Fault(
        "a wait goes on beside what was sent again",
        "include/returning",
        "    if stored then",
        "    if false then",
        BACKOFF,
        promises.each_is_in_its_place,
    ),
    Fault(
        "a rollback drops the body",
        "include/returning",
        "if body ~= '' and (not stored or",
        "if false and (not stored or",
        KEYED,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "an older body that comes back replaces a newer one",
        "include/returning",
        "if body ~= '' and (not stored or",
        "if body ~= '' and (true or",
        KEYED,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "what was requeued stays before what is newer",
        "include/returning",
        "(not stored or is_marked(redis",
        "(not stored or false and (redis",
        REQUEUED,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "a wait forgets the body",
        "include/returning",
        "put_into(slot.retry, slot, bodies, waiting)",
        "put_into(slot.retry, slot, nil, waiting)",
        KEYED,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "a wait without a charge costs a retry",
        "include/returning",
        "score_again(level or before, left + 1)",
        "score_again(level or before, left)",
        BACKOFF,
        promises.only_deliveries_cost,
    ),
    Fault(
        "a message that its consumer buries waits again",
        "rollback",
        "elseif verdict == 'bury' then",
        "elseif false then",
        BACKOFF,
        promises.nothing_in_flight_is_lost,
    ),
    Fault(
        "what nobody got loses its body",
        "include/returning",
        "slot.store, slot, bodies, scored)",
        "slot.store, slot, nil, scored)",
        KEYED,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "the dead lose their bodies",
        "include/dead",
        "(bodies and bodies[buried[k]] or '')",
        "''",
        FIRST_STAYS,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "the first payload stays in every topic",
        "include/store",
        "if messages.keep_first and messages.bodies then",
        "if messages.bodies then",
        KEYED,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "the last payload wins in every topic",
        "include/store",
        "if messages.keep_first and messages.bodies then",
        "if false then",
        FIRST_STAYS,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "a cancel leaves the body behind",
        "cancel",
        "redis.call('HDEL', bodies, unpack(ARGV, i, last))",
        "",
        KEYED,
        promises.each_has_its_body,
    ),
    Fault(
        "a claim leaves the bodies in the slot",
        "include/take_bodies",
        "redis.call('HDEL', slot.bodies, unpack(contents, 1, how_many))",
        "",
        KEYED,
        promises.each_has_its_body,
    ),
    Fault(
        "a commit leaves the bodies of its claims",
        "commit",
        "redis.call('UNLINK', key, bodies_of[record.name])",
        "redis.call('UNLINK', key)",
        KEYED,
        promises.each_has_its_body,
    ),
    Fault(
        "the last rollback of a claim leaves its bodies",
        "rollback",
        "if record.held == 0 then redis.call('UNLINK', of_claim) end",
        "",
        KEYED,
        promises.each_has_its_body,
    ),
    Fault(
        "a claim that is given back leaves its bodies",
        "give_back",
        "redis.call('UNLINK', claim, of_claim)",
        "redis.call('UNLINK', claim)",
        KEYED,
        promises.each_has_its_body,
    ),
    Fault(
        "a requeue replaces the body of what waits",
        "requeue",
        "and not stored[k]",
        "",
        FIRST_STAYS,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "a requeue brings the expiry back",
        "requeue",
        "without_expiry(body)",
        "body",
        FIRST_STAYS,
        promises.the_newer_body_stays,
    ),
    Fault(
        "a claim of a Priority topic hands out the bodies of others",
        "include/take_bodies",
        "if descending then return redis",
        "if false then return redis",
        FIRST_STAYS,
        promises.the_newest_payload_is_never_lost,
    ),
    Fault(
        "what has expired is handed out",
        "include/take_bodies",
        "return body, expires ~= nil and expires <= now",
        "return body, false",
        FIRST_STAYS,
        promises.what_has_expired_is_not_given,
    ),
    Fault(
        "what expires is never buried",
        "include/take_bodies",
        "if not expired_die then",
        "if true then",
        KEYED,
        promises.what_has_expired_is_not_given,
    ),
    Fault(
        "what expires is always buried",
        "include/take_bodies",
        "if not expired_die then",
        "if false then",
        FIRST_STAYS,
        promises.bodies_go_with_their_messages,
    ),
    Fault(
        "a message that was not alone is charged",
        "include/returning",
        "if level == ALONE then",
        "if level > 2 then",
        SUSPECTS,
        promises.only_deliveries_cost,
    ),
    Fault(
        "a suspect comes with others",
        "include/take",
        "math.min(limit, CLAIMED_WITH[level], upto - past)",
        "math.min(limit, upto - past)",
        RETRIES,
        promises.suspects_come_with_few,
    ),
    Fault(
        "who has other messages in work gets one to be alone with",
        "include/take",
        "(alone or level < ALONE)",
        "true",
        SUSPECTS,
        promises.suspects_come_with_few,
    ),
    Fault(
        "what is lost is not suspect",
        "include/returning",
        "math.max(by_size, level + 1)",
        "0",
        RETRIES,
        promises.what_is_lost_is_suspect,
    ),
    Fault(
        "a message to be alone with is not named",
        "due",
        "level_of(first) == ALONE",
        "false",
        SUSPECTS,
        promises.what_is_due_is_counted,
    ),
    Fault(
        "an older run has given up its claims itself",
        "abandon",
        "(has_failed or record.run < run) and LOST or LONG_PAST",
        "LONG_PAST",
        PLAIN,
        promises.only_a_consumer_gives_up_its_claims,
    ),
)


@pytest.fixture(scope="module")
def redis():
    found = servers.executables()
    if not found:
        servers.do_without()
    with servers.local(next(iter(found.values()))) as one:
        yield one


@pytest.mark.long(every=4)
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
