"""The tests of the scripts bite: each of these faults, put into a copy of lua/, makes one fail."""

import multiprocessing
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from rmq_spark.protocol import scripts

from .. import ROOT, servers

FOLDER = Path(str(scripts._lua_folder()))
PATIENCE_S = 120
# What takes longest of a run is to import these: it is done once.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["pytest", "hypothesis", "kazoo.client", "trustme", "rmq_spark.client"]
)


@dataclass(frozen=True)
class Mutant:
    """A fault: where, the text that is right, the text that is wrong, and whose tests see it."""

    file: str
    right: str
    wrong: str
    tests: str

    @property
    def label(self):
        return f"{self.file.removesuffix('.lua')}: {' '.join(self.wrong.split()) or 'nothing'}"


def of(file, tests, *faults):
    return [Mutant(f"{file}.lua", right, wrong, tests) for right, wrong in faults]


MUTANTS = [
    *of(
        "alter",
        "alter",
        ("if redis.call('HGET', topics, topic) ~= read then return 0 end", ""),
        ("if new ~= '' then redis", "redis"),
        ("redis.call('HDEL', topics, topic)", ""),
    ),
    *of(
        "cancel",
        "cancel",
        ("redis.call('ZREM', retry, unpack(ARGV, i, last))", "0"),
        ("redis.call('ZREM', store, unpack(ARGV, i, last))", "0"),
        ("local CONTENTS_A_CALL = 7800", "local CONTENTS_A_CALL = 9999"),
        ("'cancelled', removed)", "'cancelled', 1)"),
    ),
    *of(
        "find",
        "find",
        ("if not named[record.name] then", "if false then"),
        ("without_mark(belonging or '')", "belonging or ''"),
        ("look_into('retry', retry, bodies)", ""),
        ("look_into('dead', dead, deaths)", "look_into('dead', dead, bodies)"),
        ("body_at(redis.call('ZRANK', claim, content))", "body_at(0)"),
        ("redis.call('HGET', claims, name))", "'')"),
    ),
    *of(
        "move",
        "move wake",
        ("wanted > HIGHEST_RETRY and wanted <= 2 ^ 53", "wanted > 0"),
        ("if score and score > HIGHEST_RETRY then", "if score then"),
        ("elseif score and are_times and wanted <= now then", "elseif false then"),
        ("    due = due + 1", "    due = due"),
        ("retry_score(wanted, score), content)", "retry_score(wanted, 1), content)"),
        ("returned[#returned + 1] = content", ""),
        ("elseif again and are_times then", "elseif false then"),
        ("retry_score(wanted, score_of_retry(again))", "retry_score(wanted, 1)"),
        ("zadd(store, 'XX', first)", ""),
        ("elseif score and are_times then", "elseif score then"),
        ("count(stats, 'dueSince', change)", ""),
        ("{unpack(ARGV, i, math.min(i + UNPACKABLE - 1, #ARGV))}", "{unpack(ARGV, i)}"),
        ("if are_times and #first > 0 then wake_if_first(store, wanted, now) end", ""),
        ("if #waiting > 0 then wake(store, math.max(0, wanted - now)) end", ""),
    ),
    *of(
        "claim",
        "claim claim_again claim_exclusive",
        ("if seq <= header.settled then", "if seq < header.settled then"),
        ("if refused then return refused end", ""),
        ("header.run, header.seen = run, now", "header.seen = now"),
        ("if not record and (replay_only or", "if not record and ("),
        (
            "seq == header.last_seq and ordinal <= header.last_ordinal",
            "seq == header.last_seq and ordinal < header.last_ordinal",
        ),
        ("header.last_seq, header.last_ordinal = seq, ordinal", "header.last_seq = seq"),
        (
            "write_record(slot.claims, {name",
            "local _ = taken > 0 and write_record(slot.claims, {name",
        ),
        ("sealed = taken,", "sealed = limit,"),
        ("held = taken,", "held = limit,"),
        ("moved = moved,", "moved = 0,"),
        ("made = now, run = run,", "made = 1, run = run,"),
        ("other.consumer ~= consumer and other.held > 0", "other.consumer ~= consumer"),
        ("other.consumer ~= consumer and other.held > 0", "other.held > 0"),
        ("if not fenced and not held_by_others then", "if not fenced then"),
        ("if not fenced and not held_by_others then", "if not held_by_others then"),
        ("stored_epoch and epoch < stored_epoch", "stored_epoch and epoch <= stored_epoch"),
        ("if not fenced then redis.call", "if true then redis.call"),
        ("not record and needs_an_epoch", "needs_an_epoch"),
        (
            "MESSAGES_AT_MOST, HIGHEST_ORDINAL = 8192, 15",
            "MESSAGES_AT_MOST, HIGHEST_ORDINAL = 9216, 15",
        ),
        (
            "MESSAGES_AT_MOST, HIGHEST_ORDINAL = 8192, 15",
            "MESSAGES_AT_MOST, HIGHEST_ORDINAL = 8192, 16",
        ),
        ("count(slot.stats, 'claimed', taken)", "count(slot.stats, 'claimed', limit)"),
        ("if other.held > 0 and other.arrivals", "if other.arrivals"),
        ("other.held > 0 and other.arrivals ~= arrived", "other.held > 0"),
        ("arrivals = arrived,", "arrivals = 0,"),
        ("if #keys < #reply - 1 then return nil, reply end", ""),
        ("if #keys < #reply - 1 then", "if #keys < #reply - 2 then"),
        (
            "keys[#keys + 1] = known[other.name]",
            "keys[#keys + 1] = known[other.name] and KEYS[OTHER_KEYS]",
        ),
        ("if not others then return unknown end", "others = others or {}"),
        ("ipairs({own, part})", "ipairs({own})"),
        ("ipairs({own, part})", "ipairs({part})"),
        ("record.charged = record.charged + 1", "record.charged = 1"),
        ("record.run > 0 and record.run < run", "record.run > 0 and record.run <= run"),
        ("record.run, record.deadline = run, now + lease_ms", "record.deadline = now + lease_ms"),
        ("record.run, record.deadline = run, now + lease_ms", "record.run = run"),
        ("return {record.held, 0, record.moved", "return {record.sealed, 0, record.moved"),
        ("return {record.held, 0, record.moved", "return {record.held, 0, 0"),
        ("record.made, record.max_retries,", "now, record.max_retries,"),
        ("record.made, record.max_retries,", "record.made, max_retries,"),
        (
            "record.max_retries, record.charged, record.sealed",
            "record.max_retries, 0, record.sealed",
        ),
    ),
    *of(
        "claim",
        "claim",
        ("'HMGET', slot.stats, 'accepted', 'rolledBack'", "'HMGET', slot.stats, 'accepted', 'x'"),
        ("'HMGET', slot.stats, 'accepted', 'rolledBack'", "'HMGET', slot.stats, 'x', 'rolledBack'"),
    ),
    *of("claim", "unread", ("record.run > 0 and record.run < run", "record.run < run")),
    *of(
        "claim",
        "plan",
        ("header.mark ~= planned or", ""),
        ("or header.server ~= server_id()", ""),
        ("and planned ~= '' and", "and"),
    ),
    *of(
        "plan",
        "plan",
        ("if refused then return refused end", ""),
        ("header.run, header.seen = run, now_ms()", ""),
        ("header.mark, header.server = mark, server_id()", "header.mark = mark"),
    ),
    *of(
        "claim",
        "pause",
        ("header.paused and TOPIC_PAUSED or PLAN_FORGOTTEN", "PLAN_FORGOTTEN"),
        ("if header.paused then", "if false then"),
        ("if header.paused then", "if header.paused and planned ~= '' then"),
        ("  header.mark = NO_PLAN", ""),
        ("  write_header(consumers, header)\n  return {0, TOPIC", "  return {0, TOPIC"),
        ("return {0, TOPIC_PAUSED, 0", "return {0, PLAN_FORGOTTEN, 0"),
        ("if not record and not header.paused then", "if not record then"),
    ),
    *of(
        "pause",
        "pause",
        ("if paused then", "if true then"),
        ("  redis.call('HSET', consumers, PAUSED, 1)", ""),
        ("  redis.call('HDEL', consumers, PAUSED)", ""),
        ("  redis.call('HDEL', consumers, PAUSED)", "redis.call('DEL', consumers)"),
    ),
    *of("include/server", "plan", ("master_replid:(%w+)", "role:(%w+)")),
    *of(
        "include/headers",
        "drop",
        ("return header.is_new and redis.call('EXISTS', ...) == 0", "return false"),
    ),
    *of("commit", "commit", ("#ARGV < CLAIM_NAMES or not", "not")),
    *of("abandon", "abandon", ("seq == 0 or not", "not")),
    *of("plan", "plan", (", stats, store, retry) then", ", stats, retry) then")),
    *of("plan", "plan", (", stats, store, retry) then", ", stats, store) then")),
    *of(
        "claim",
        "claim",
        (
            "if is_deserted(header, consumers, slot.stats, slot.store",
            "if is_deserted(header, slot.store",
        ),
    ),
    *of("include/headers", "plan", (" ?(%S*) ?(%S*)$", " (%S*) (%S*)$")),
    *of(
        "include/take",
        "bodies",
        ("'claimed', 'expired', 'dead:' .. EXPIRED", "'claimed', 'expired'"),
        ("'claimed', 'expired', 'dead:' .. EXPIRED", "'claimed', 'dead:' .. EXPIRED"),
    ),
    *of(
        "include/bodies",
        "bodies",
        ("if kind < EXPIRES then return nil end", ""),
        ("kind >= TO_LIVE\n", "false\n"),
        ("- TO_LIVE + EXPIRES)", "- TO_LIVE)"),
        ("'%016.0f'", "'%.0f'"),
        (
            ".. string.sub(body, TIME_DIGITS + 2)\nend\n\n-- Returns a body that",
            "\nend\n\n-- Returns a body that",
        ),
        ("if kind < EXPIRES then return body end", ""),
        ("string.char(kind - EXPIRES + ", "string.char(kind - TO_LIVE + "),
        ("if counted_from_due then pairs_[i]", "if false then pairs_[i]"),
        ("if counted_from_due then pairs_[i]", "if expires then pairs_[i]"),
        ("now + expires)", "expires)"),
        ("for i = 2, #pairs_, 2 do\n    local expires", "for i = 2, 2 do\n    local expires"),
        ("for i = 2, #pairs_, 2 do\n    if #", "for i = 2, 2 do\n    if #"),
        ("#pairs_[i] > LARGE_BODY", "#pairs_[i] > 2 * LARGE_BODY"),
        ("is_marked(body) and string.sub(body, 2) or body", "body"),
        ("for i = 1, #pairs_, 2 * UNPACKABLE do", "for i = 1, 1 do"),
    ),
    *of(
        "include/claim_bodies",
        "bodies",
        (
            "BYTES_A_PART, ORDER = 1024,",
            "BYTES_A_PART, ORDER = 1025,",
        ),
        ("ORDER = 1024, 64 * 1024,", "ORDER = 1024, 128 * 1024,"),
        ("lengths[i] = #bodies[i]", "lengths[i] = 1"),
        ("    at = at + lengths[i]", "    at = at + lengths[i] + 1"),
        ("(descending and 'desc ' or 'asc ')", "'asc '"),
        ("(descending and 'desc ' or 'asc ')", "'desc '"),
        ("ranks[k] = descending and last - rank or rank", "ranks[k] = rank"),
        ("redis.call('ZCARD', claim) - 1", "redis.call('ZCARD', claim)"),
        ("  table.sort(ranks)", ""),
        ("      write_part(of_claim, number - 1, kept)", ""),
        ("      counts[number] = #kept", ""),
        ("  write_order(of_claim, descending, counts)\n  return by_content", "  return by_content"),
        ("kept[#kept + 1] = body", "kept[#kept + 1] = ''"),
        ("          at = at + 1", ""),
        ("descending and size - 1 - rank or rank", "rank"),
        ("if place < first or place >= past then", "if past == 0 then"),
        ("        first, past = past, past + how_many", "        past = past + how_many"),
        ("return part[place - first + 1] or ''", "return part[1] or ''"),
    ),
    *of(
        "include/take_bodies",
        "bodies",
        ("BYTES_OF_FIRST_KIND = 7", "BYTES_OF_FIRST_KIND = 99"),
        ("score > HIGHEST_RETRY and score or now", "score"),
        ("score > HIGHEST_RETRY and score or now", "now"),
        ("body = without_mark(body)", ""),
        ("if counted_from_due then", "if false then"),
        ("body = expiring_at(body, expires)", ""),
        ("expires ~= nil and expires <= now", "false"),
        ("if descending then return redis", "if false then return redis"),
        ("zadd(store, 'NX', scored)", ""),
        ("redis.call('ZREM', claim, unpack(contents))", ""),
        ("scored[2 * k] = score, contents[k]", "scored[2 * k] = 20, contents[k]"),
        ("  redis.call('UNLINK', of_claim) --", "  --"),
        ("redis.call('HDEL', slot.bodies, unpack(contents, 1, how_many))", ""),
        ("redis.call('ZREM', claim, unpack(gone))", ""),
        ("expired = expired + #gone", ""),
        ("count(slot.stats, 'expired', #gone)", "0"),
        ("if not expired_die then", "if true then"),
        ("if not expired_die then", "if false then"),
        ("return EXPIRED end, bodies_of, buried)", "return EXPIRED end, nil, buried)"),
        ("return EXPIRED end", "return '' end"),
        ("bytes = bytes + redis", "bytes = redis"),
        ("    if bytes >= enough then return k end", ""),
        ("if has_large then", "if false then"),
        ("'HEXISTS', slot.stats, 'largeBodies'", "'HEXISTS', slot.stats, 'x'"),
        ("      bytes = bytes + #body", ""),
        ("if in_part == BODIES_A_PART then write() end", ""),
        ("if bytes_of_part + #body > BYTES_A_PART then write() end", ""),
        ("part, in_part, bytes_of_part = {}, 0, 0\n  end", "part, in_part = {}, 0\n  end"),
        ("string.byte(body) >= EXPIRES then", "false then"),
        ("part[in_part] = body", "part[in_part] = found[1]"),
        ("held = held + how_many - #gone", "held = held + how_many"),
        ("if #gone > 0 then let_expire(gone, bodies_of_gone) end", ""),
        ("put_rest_back(slot.store, claim, held, left, descending)", ""),
        ("descending and taken - retries or retries", "retries"),
        ("lead < taken and BYTES_OF_FIRST_KIND or BYTES_A_CLAIM", "BYTES_A_CLAIM"),
        ("lead < taken and BYTES_OF_FIRST_KIND or BYTES_A_CLAIM", "BYTES_OF_FIRST_KIND"),
        ("math.max(BYTES_A_CLAIM, bytes + 1)", "BYTES_A_CLAIM"),
        ("    counts[#counts + 1] = in_part", "    counts[#counts + 1] = BODIES_A_PART"),
        ("  write()\n  if #counts", "  if #counts"),
        ("  if #counts > 0 then write_order(of_claim, descending, counts) end", ""),
        ("if #counts > 0 then write_order", "if true then write_order"),
        ("return held, expired", "return taken, expired"),
        ("return held, expired", "return held, 0"),
    ),
    *of(
        "include/returning",
        "bodies",
        ("if body ~= '' and (not stored or", "if body ~= '' and (true or"),
        ("if body ~= '' and (not stored or", "if (not stored or"),
        ("(not stored or is_marked(redis", "(not stored or (redis"),
        ("(not stored or is_marked(redis", "(not stored or not (redis"),
        ("  set_bodies(slot.bodies, kept_bodies)", ""),
        ("  if target == slot.store and not bodies then", "if target == slot.store then"),
        ("put_into(slot.retry, slot, bodies, waiting)", "put_into(slot.retry, slot, nil, waiting)"),
        ("put_into(slot.store, slot, bodies, again)", "put_into(slot.store, slot, nil, again)"),
        ("slot.store, slot, bodies, scored)", "slot.store, slot, nil, scored)"),
        (
            "waiting)\n  bury(slot, record.consumer, reason_of, bodies,",
            "waiting)\n  bury(slot, record.consumer, reason_of, nil,",
        ),
        (
            "#buried / 2)\n  bury(slot, record.consumer, reason_of, bodies,",
            "#buried / 2)\n  bury(slot, record.consumer, reason_of, nil,",
        ),
    ),
    *of("include/dead", "bodies", ("and class ~= EXPIRED then", "then")),
    *of(
        "include/store",
        "bodies",
        ("if messages.keep_first and messages.bodies then", "if false then"),
        ("not seen[content] and redis", "redis"),
        ("redis.call('HEXISTS', bodies, content) == 0", "true"),
        ("redis.call('HSET', bodies, unpack(first))", "0"),
        ("redis.call('HSET', bodies, unpack(messages.bodies))", "0"),
        ("if messages.bodies then count_large", "if false then count_large"),
        ("if (messages.bare or not messages.bodies) and", "if messages.bare and"),
        ("if (messages.bare or not messages.bodies) and", "if"),
        ("keys[k + 3], messages)", "keys[from + 3], messages)"),
    ),
    *of(
        "include/store",
        "bare",
        ("if (messages.bare or not messages.bodies) and", "if not messages.bodies and"),
        ("unpack(messages.bare or contents_of(messages.values()))", "unpack(messages.bare, 1, 1)"),
        ("if messages.bodies then set_bare_apart(messages) end", ""),
        ("is_mixed = is_mixed or pairs_[i] == ''", "is_mixed = pairs_[i] == ''"),
        ("last[pairs_[i]] = pairs_[i + 1]", "last[pairs_[i]] = last[pairs_[i]] or pairs_[i + 1]"),
        ("if body == '' then", "if false then"),
        ("bare[#bare + 1] = content", ""),
        ("full[#full + 1], full[#full + 2] = content, body", ""),
        ("#full > 0 and full", "full"),
    ),
    *of(
        "cancel",
        "bodies",
        ("  redis.call('HDEL', bodies, unpack(ARGV, i, last))", ""),
    ),
    *of("purge", "bodies", ("redis.call('HDEL', belongings, unpack(wanted))", "")),
    *of(
        "commit",
        "bodies",
        ("'UNLINK', key, bodies_of[record.name])", "'UNLINK', key)"),
        ("CLAIM_KEYS + #ARGV - CLAIM_NAMES + 1,", "CLAIM_KEYS,"),
        ("expired + record.expired", "expired"),
    ),
    *of(
        "rollback",
        "bodies",
        ("take_out_bodies(claim, of_claim, taken)", "nil"),
        ("if record.held == 0 then redis.call('UNLINK', of_claim) end", ""),
        (
            "if record.held == 0 then redis.call('UNLINK', of_claim) end",
            "redis.call('UNLINK', of_claim)",
        ),
    ),
    *of(
        "give_back",
        "bodies",
        (
            "items, contents, bodies = {}, {}, body_at and {}",
            "items, contents, bodies = {}, {}, nil",
        ),
        ("redis.call('UNLINK', claim, of_claim)", "redis.call('UNLINK', claim)"),
    ),
    *of(
        "claim",
        "bodies",
        ("expired = expired})", "expired = 0})"),
        ("max_retries, 0, taken, expired}", "max_retries, 0, taken, 0}"),
        ("    record.expired}", "    0}"),
    ),
    *of(
        "requeue",
        "bodies",
        ("body ~= '' and not stored[k] and not waiting[k]", "body ~= '' and not waiting[k]"),
        ("body ~= '' and not stored[k] and not waiting[k]", "body ~= '' and not stored[k]"),
        ("body ~= '' and not stored[k] and not waiting[k]", "not stored[k] and not waiting[k]"),
        ("without_expiry(body)", "body"),
        ("marked(without_expiry(body))", "without_expiry(body)"),
        ("\nkeep_bodies(found)", ""),
    ),
    *of(
        "page",
        "bodies",
        ("local body_at = is_claim and", "local body_at = false and"),
        ("if not is_claim then return redis", "if true then return redis"),
        ("add(without_mark(belonging or ''))", "add('')"),
        ("add(without_mark(belonging or ''))", "add(belonging or '')"),
    ),
    *of(
        "stage",
        "bodies",
        ("values = bodies and 3 or 2", "values = 2"),
        ("= pairs_[i], pairs_[i + 1], bodies[i + 1]", "= pairs_[i], pairs_[i + 1], bodies[2]"),
        ("for i = 1, #staged, VALUES_A_CALL do", "for i = 1, 1 do"),
    ),
    *of("include/stages", "bodies", ("tonumber(values) or 2", "2")),
    *of(
        "publish",
        "bodies",
        ("if values == 2 then return staged, nil end", "do return staged, nil end"),
        ("staged[i + 1], staged[i + 2]", "staged[i + 1], staged[3]"),
        ("bodies = due_now(bodies, now)", ""),
        ("if bodies and send_script == 'send_last'", "if bodies"),
        ("  keep_first = keep_first,", ""),
    ),
    *of("send_at", "bodies", (" keep_first = keep_first,", "")),
    *of("send_first", "bodies", (" keep_first = keep_first,", "")),
    *of(
        "send_last",
        "bodies",
        (", keep_first = keep_first,", ","),
        ("bodies and due_now(", "bodies and ("),
    ),
    *of(
        "include/take",
        "claim claim_again",
        ("redis.call('ZREMRANGEBYRANK', slot.retry, 0, moved - 1)", ""),
        ("zadd(slot.store, 'NX', again)", "zadd(slot.store, 'LT', again)"),
        ("local RETRIES_AT_MOST = 1000", "local RETRIES_AT_MOST = 1001"),
        ("  return moved\nend\n\n-- Puts", "  return 1\nend\n\n-- Puts"),
        ("for _, other in ipairs(others) do", "for _, other in ipairs({others[1]}) do"),
        ("local last = math.min(i + UNPACKABLE - 1, #twins)", "local last = #twins"),
        ("scored[2 * k] = score, twins[i + k - 1]", "scored[2 * k] = score, twins[k]"),
        ("scored[2 * k] = score,", "scored[2 * k] = 1,"),
        ("redis.call('ZREM', sealed, unpack(twins, i, last))", ""),
        ("redis.call('ZADD', store, 'NX', unpack(scored))", ""),
        ("back = back + #twins", ""),
        ("redis.call('EXISTS', claim) == 0 and claim or part", "claim"),
        ("store, rank, last, 'REV')", "store, rank, last)"),
        (
            "redis.call('ZREMRANGEBYRANK', store, -last - 1, -rank - 1)",
            "redis.call('ZREMRANGEBYRANK', store, rank, last)",
        ),
        (
            "redis.call('ZREMRANGEBYRANK', store, rank, last)",
            "redis.call('ZREMRANGEBYRANK', store, 0, last - rank)",
        ),
        ("local moved = how_many - back", "local moved = how_many"),
        ("redis.call('ZUNIONSTORE', claim, 2, claim, part)", ""),
        ("redis.call('UNLINK', part)", ""),
        ("looked_at + how_many, taken + moved", "looked_at, taken + moved"),
        ("rank + how_many - moved, past - moved, spare", "rank, past - moved, spare"),
        ("rank + how_many - moved, past - moved, spare", "rank + how_many, past, spare"),
        ("math.floor(COMPARED_AT_MOST / claims)", "limit"),
        ("math.max(TAKEN_AT_LEAST,", "math.max(1,"),
        ("math.floor(PASSED_OVER_AT_MOST / claims)", "LOOKED_AT_MOST"),
        ("math.max(limit, math.floor(PASSED_OVER_AT_MOST / claims))", "limit"),
        ("local LOOKED_AT_MOST = 16384", "local LOOKED_AT_MOST = 32768"),
        ("local LOOKED_AT_MOST = 16384", "local LOOKED_AT_MOST = 8192"),
        ("descending and '+inf' or text_of(until_ms)", "'+inf'"),
        ("if descending then lead, last = firsts, retries end", ""),
        ("math.max(1, math.floor(limit / 8))", "math.floor(limit / 8)"),
        ("math.min(last, math.max(", "math.max(last, math.max("),
        ("if limit == 1 and lead > 0 and", "if false and"),
        ("turns_taken(slot.stats) %", "0 %"),
        ("return take(first_rank, lead + last, lead", "return take(first_rank, lead, lead"),
        ("take(first_rank + lead - taken, last,", "take(first_rank, last,"),
        ("if limit == 1 and taken == 0 then", "if false then"),
    ),
    *of(
        "include/take",
        "suspects",
        ("return take(first_rank, lead + last, lead", "return take(0, lead + last, lead"),
        ("take(first_rank, lead, of_lead,", "take(0, lead, of_lead,"),
        ("for level = ALONE, 1, -1 do", "for level = ALONE, 2, -1 do"),
        ("(alone or level < ALONE)", "true"),
        ("(alone or level < ALONE)", "level < ALONE"),
        ("descending and firsts + retries - upto or past", "past"),
        ("descending and firsts + retries - upto or past", "0"),
        ("math.min(limit, CLAIMED_WITH[level], upto", "math.min(limit, upto"),
        ("math.min(limit, CLAIMED_WITH[level], upto", "math.min(CLAIMED_WITH[level], upto"),
        ("if taken > 0 then return taken, upto end", "return taken, upto"),
        ("      past = upto", ""),
        ("if taken > 0 then return taken end", "return taken"),
        ("retries = retries - suspects", ""),
        ("if not descending then first_rank = suspects end", ""),
        ("if not descending then first_rank = suspects end", "first_rank = suspects"),
        ("score_of_retry(items[i + 1])", "items[i + 1] % 1000"),
    ),
    *of(
        "include/returning",
        "reasons rollback expire give_back unread",
        (
            "return #scored / 2 - zadd(target, 'NX', scored) end",
            "return #scored / 2 - zadd(target, 'LT', scored) end",
        ),
        ("local target = left == 0 and buried or", "local target ="),
        ("      if stored then", "      if false then"),
        ("        merged = merged + 1", ""),
        (
            "for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #scored), 2 do",
            "for k = i + 1, #scored, 2 do",
        ),
        ("zadd(target, 'NX', kept)", "zadd(target, 'NX', scored)"),
        ("delay_ms or backoff_ms(", "backoff_ms("),
        ("count(slot.stats, 'merged', merged)", ""),
        ("is_as_it_was and items[i + 1] or again", "again"),
        ("is_as_it_was and items[i + 1] or again", "items[i + 1]"),
        ("left == at_first and (level or before) == before", "left == at_first"),
        ("left == at_first and (level or before) == before", "(level or before) == before"),
        ("wait > 0 and retry_score(now + wait, again) or", ""),
        ("retry_score(now + wait, again)", "retry_score(now, again)"),
        ("put_into(wait > 0 and slot.retry or slot.store", "put_into(slot.store"),
        ("delay_ms or 0", "0"),
        ("buried[i], buried[i + 1] = now,", "buried[i], buried[i + 1] = 0,"),
        ("count(slot.stats, 'rolledBack', #buried / 2)", ""),
        (
            "return #scored / 2 - zadd(target, 'NX', scored) end",
            "return #scored / 2 - zadd(target, 'GT', scored) end",
        ),
    ),
    *of(
        "include/returning",
        "suspects",
        ("level and suspect_score(level, left) or left", "left"),
        ("math.max(0, level_of(score))", "0"),
        ("score_again(level or before, left + 1)", "score_again(level or before, left)"),
        ("score_again(level or before, left + 1)", "score_again(level or before, at_first + 1)"),
        ("record.sealed, level_of(tonumber(items[2] or 0))", "record.sealed, 0"),
        ("tonumber(items[2] or 0)", "tonumber(items[2])"),
        ("if level == ALONE then", "if messages == 1 then"),
        ("reason_of, nil, ALONE)", "reason_of)"),
        ("messages > CLAIMED_WITH[1]", "messages >= CLAIMED_WITH[1]"),
        ("messages > CLAIMED_WITH[2]", "messages >= CLAIMED_WITH[2]"),
        ("math.max(by_size, level + 1)", "by_size"),
        ("math.max(by_size, level + 1)", "level + 1"),
    ),
    *of(
        "include/dead",
        "reasons rollback expire give_back bodies",
        ("count(slot.stats, 'dead', #buried / 2)", ""),
        (".. reason .. (bodies", ".. (bodies"),
        ("'%s %d ', consumer, #reason)", "'%s %d ', '', #reason)"),
        ("'%s %d ', consumer, #reason)", "'%s %d ', consumer, 0)"),
        (" .. (bodies and bodies[buried[k]] or '')", ""),
        ("bodies and bodies[buried[k]]", "bodies[buried[k]]"),
        ("if reason == '' then return 'none' end", ""),
        ("if reason == GIVEN_BACK or", "if"),
        ("or reason == LEASE_RAN_OUT or", "or"),
        ("string.match(reason, '^([%a_][%w_.]*)$') or", ""),
        ("or string.match(reason, '^([%a_][%w_.]*):')", ""),
        ("string.sub(class, 1, 64)", "class"),
        ("(classes[class] or 0) + 1", "1"),
        ("there >= COUNTERS_A_SLOT", "false"),
        ("if not known[counter] then", "if true then"),
        ("there = there + 1", ""),
        (
            "for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #buried), 2 do",
            "for k = i + 1, #buried, 2 do",
        ),
        ("#head + length + 1", "#head + length"),
        ("head and string.sub(death, #head + length + 1) or ''", "''"),
    ),
    *of(
        "include/retry_queue",
        "rollback expire claim unread",
        ("math.ceil(due_ms / 1000)", "math.floor(due_ms / 1000)"),
        ("math.max(1, terms.max_retries - left + 1)", "math.max(1, terms.max_retries - left)"),
        ("tonumber(jitter or 0)", "0"),
        ("wait * (1 - terms.jitter * chance)", "wait * chance"),
        ("wait * (1 - terms.jitter * chance)", "wait * (1 - terms.jitter)"),
        ("redis.sha1hex(left .. content)", "redis.sha1hex(left)"),
        ("math.floor(until_ms / 1000) * 1000 + 1000", "math.floor(until_ms / 1000) * 1000"),
    ),
    *of(
        "include/retry_queue",
        "suspects claim",
        ("+ math.abs(score)", "+ score"),
        ("rest > HIGHEST_RETRY and -rest or rest", "rest"),
        ("rest > HIGHEST_RETRY and -rest or rest", "-rest"),
    ),
    *of(
        "include/records",
        "rollback give_back commit",
        ("math.max(0, at_first - record.charged)", "at_first - record.charged"),
        ("math.max(0, at_first - record.charged)", "at_first"),
        ("score <= HIGHEST_RETRY and deliveries", "score < HIGHEST_RETRY and deliveries"),
        ("score <= HIGHEST_RETRY and deliveries - 1", "score <= HIGHEST_RETRY and deliveries"),
        (
            "record.moved, record.max_retries, record.charged",
            "record.max_retries, record.moved, record.charged",
        ),
        ("by_name[args[arg + i]] = keys[key + i]", "by_name[args[arg + i]] = keys[key]"),
    ),
    *of(
        "commit",
        "commit",
        ("record.consumer == consumer and record.seq > since", "record.seq > since"),
        ("if record.held == 0 or key then", "if key then"),
        ("if record.held == 0 or key then", "if true then"),
        ("if record.held > 0 then redis.call('UNLINK', key, bodies_of[record.name]) end", ""),
        ("and record.seq <= seq", ""),
        ("and record.seq <= seq", "and record.seq == seq"),
        ("and record.seq > since", ""),
        ("record.run == of_run or", ""),
        ("or record.replayed == of_run", ""),
        ("record.replayed == of_run", "record.replayed > 0"),
        ("is_of(record, run) or", ""),
        ("finisher == EVERY_RUN or", ""),
        ("finisher == EVERY_RUN or", "finisher or"),
        ("or finisher and is_of(record, finisher)", ""),
        ("if refused then return refused end", ""),
        ("math.max(header.settled, seq)", "seq"),
        ("header.run, header.settled,", "header.settled,"),
        ("redis.call('HDEL', claims, record.name)", ""),
        ("NAMED_AT_MOST, EVERY_RUN = 4, 6, 8, 0", "NAMED_AT_MOST, EVERY_RUN = 4, 6, 9, 0"),
        ("held + record.held, done", "held + record.sealed, done"),
        ("claimed + record.sealed", "claimed + record.held"),
        ("moved + record.moved", "moved"),
        ("count(stats, 'committed', held)", "count(stats, 'committed', claimed)"),
        ("header.settled >= seq and 1 or 0", "header.settled > seq and 1 or 0"),
        ("moved, held, done, again, expired,", "moved, held, held, again, expired,"),
        ("expired, gone, unpack(left)}", "expired, gone}"),
        ("again == 0 and header.last_seq == seq", "header.last_seq == seq"),
        ("header.last_seq == seq and header.last_ordinal + 1 or 0", "header.last_ordinal + 1"),
        ("header.last_ordinal + 1 or 0", "header.last_ordinal or 0"),
        ("record.consumer == consumer and record.seq == seq then", "record.seq == seq then"),
        (
            "record.consumer == consumer and record.seq == seq then",
            "record.consumer == consumer then",
        ),
        (
            "and record.seq == seq then gone = gone - 1 end",
            "and record.seq == seq then gone = 0 end",
        ),
    ),
    *of(
        "due",
        "due",
        ("epoch ~= nil and stored_epoch ~= nil and epoch < stored_epoch", "false"),
        ("next_ms = math.min(next_ms or record.deadline, record.deadline)", ""),
        ("if second and second > now then", "if false then"),
        ("if second and second > now then", "if second then"),
        ("next_ms = math.min(next_ms or second, second)", "next_ms = second"),
        ("if first > now and not descending then", "if false then"),
        ("if first > now and not descending then", "if not descending then"),
        ("if first > now and not descending then", "if first > now then"),
        ("held and count or 0, next_ms", "0, next_ms"),
        ("{held and 0 or count", "{count"),
        ("if record.deadline > now then", "if false then"),
        ("if record.deadline > now then", "if true then"),
        ("elseif record.held > 0 then", "else"),
        ("epoch ~= nil and record.consumer ~= consumer and", "epoch ~= nil and"),
        ("epoch ~= nil and record.consumer ~= consumer and", "record.consumer ~= consumer and"),
        ("consumer and record.held > 0", "consumer"),
        ("count = count + record.held", "count = count + record.sealed"),
        ("expired[#expired + 1] = record.name", "expired[1] = record.name"),
        ("live[#live + 1] = record.name", "live[1] = record.name"),
        ("if record.held > 0 then live", "if true then live"),
        ("math.min(now, due_before)", "now"),
    ),
    *of("due", "pause", ("local held = paused or", "local held =")),
    *of(
        "any_due",
        "any_due",
        ("descending and '+inf' or", "false or"),
        ("store, '-inf', until_ms", "store, '(16', until_ms"),
        ("if due > 0 then return 1 end", "if due > 0 then return 1 end if true then return 0 end"),
    ),
    *of(
        "stirred",
        "stirred",
        ("descending and '+inf' or", "false or"),
        ("if due > 0 then", "if due > 1 then"),
        ("if due > 0 then", "if due >= 0 then"),
        ("'EXISTS', KEYS[k + 1], KEYS[k + 2]", "'EXISTS', KEYS[k + 1]"),
        ("'EXISTS', KEYS[k + 1], KEYS[k + 2]", "'EXISTS', KEYS[k + 2]"),
        ("KEYS_A_SLOT = 3", "KEYS_A_SLOT = 6"),
    ),
    *of(
        "include/wake",
        "wake",
        ("redis.pcall(", "redis.call("),
        ("text_of(wait_ms)", "0"),
        ("'(' .. text_of(due)) == 0", "'(' .. text_of(due)) <= 1"),
        ("'(' .. text_of(due)", "text_of(due)"),
        ("math.max(0, due - now)", "due - now"),
    ),
    *of(
        "include/store",
        "wake",
        ("if added > 0 or not messages.condition then wake", "if true then wake"),
        ("added > 0 or not messages.condition", "added > 0"),
        ("== added then", ">= added then"),
        ("elseif redis.call('ZCOUNT', store, '-inf', '+inf') == added then", "elseif false then"),
        ("wake_for(store, messages, new)", ""),
    ),
    *of("include/due_after", "wake", ("first = math.min(first, now", "first = math.max(0, now")),
    *of(
        "include/dated",
        "wake",
        ("first = math.min(first, now - score)", ""),
        ("if score < first then first = score end", ""),
        ("return pairs_, lowest, first", "return pairs_, lowest, lowest"),
    ),
    *of("send_at", "wake", ("first = first,", "")),
    *of(
        "publish",
        "wake",
        ("pairs_, first = due_after", "pairs_ = due_after"),
        ("lowest, first = dated", "lowest = dated"),
    ),
    *of("requeue", "wake", ("wake(store, 0)", "")),
    *of(
        "include/returning",
        "wake",
        ("wake(slot.store, soonest)", ""),
        ("math.min(soonest, wait)", "0"),
        ("if left > 0 then soonest", "if true then soonest"),
        ("  wake(slot.store, wait)\n", ""),
        ("wake(slot.store, wait)", "wake(slot.store, 0)"),
    ),
    *of("release", "wake", ("wake(store, 0)", "")),
    *of("pause", "wake", ("wake(store, 0)", "")),
    *of(
        "expire",
        "expire",
        ("is_consumer(consumer) and not holds", "not holds"),
        ("and not holds[consumer]", ""),
        ("holds[record.consumer] = true", ""),
        ("seen <= now - forget_ms", "seen <= now"),
        ("if forgotten[record.consumer] then", "if true then"),
        ("if record.deadline <= now then reply", "if true then reply"),
        ("if record.held > 0 then", "if true then"),
        ("local CONSUMERS_AT_MOST = 1000", "local CONSUMERS_AT_MOST = 1001"),
        ("      reply[1] = 1", ""),
    ),
    *of(
        "include/bytes",
        "large forget page",
        ("BYTES_A_CALL, BYTES_A_CLAIM = 1024 * 1024", "BYTES_A_CALL, BYTES_A_CLAIM = 2048 * 1024"),
        ("= 1024 * 1024, 8 * 1024 * 1024", "= 1024 * 1024, 16 * 1024 * 1024"),
        ("READ_AT_ONCE = 512 * 1024, 16", "READ_AT_ONCE = 512 * 1024, 64"),
        ("0, 0, 1\n", "0, 0, 8\n"),
        ("while done < most and bytes < enough do", "while bytes < enough do"),
        ("while done < most and bytes < enough do", "while done < most do"),
        ("math.min(math.max(1, sure, alike), most - done)", "math.max(1, sure, alike)"),
        ("done + read, bytes + size\n", "done + read, size\n"),
        ("math.max(1, sure, alike)", "math.max(1, sure)"),
        ("math.max(1, sure, alike)", "math.max(sure, alike)"),
        ("if read < asked then break end", ""),
        ("(enough - bytes) * done /", "enough * done /"),
        ("tonumber(noted) or accepted", "accepted"),
        ("accepted and SMALL or math.huge", "SMALL"),
        ("if size > SMALL then", "if size >= SMALL then"),
        ("math.max(0, size - noted)", "size - noted"),
        ("math.max(0, size - noted)", "size"),
        ("math.max(1, math.min(enough, BYTES_LOOKED_AT))", "math.min(enough, BYTES_LOOKED_AT)"),
        ("math.max(1, math.min(enough, BYTES_LOOKED_AT))", "1"),
        ("full = done + read > 0 and bytes + size", "full = bytes + size"),
        ("      if full then break end", ""),
        ("bytes + size + #content > enough", "size + #content > enough"),
        ("fit + read, bytes + size", "fit + read, size"),
        ("math.floor((enough - bytes) / largest))\n", "math.floor(enough / largest))\n"),
        ("math.min(available - fit, math", "math.min(available, math"),
        ("return fit + sure, bytes + sure * largest", "return fit, bytes"),
        ("return fit + sure, bytes + sure * largest", "return fit + sure, bytes"),
        ("return available, available * largest end", "return available, 0 end"),
    ),
    *of(
        "give_back",
        "large",
        ("BYTES_A_CALL, function", "math.huge, function"),
        ("bytes = bytes + #content + #body", "bytes = bytes + #body"),
        ("bytes = bytes + #content + #body", "bytes = bytes + #content"),
        ("end, not body_at and largest_of(", "end, largest_of("),
        ("if is_cut and has_rest() then return", "if false then return"),
        ("has_rest() and rest_name or ''}", "''}"),
        ("record.sealed = is_rest and record.sealed or held", "record.sealed = #contents"),
        ("record.sealed = is_rest and record.sealed or held", "record.sealed = held"),
        ("if body_at then take_out_bodies(claim, of_claim, contents) end", ""),
        ("if not is_cut or not is_rest then redis", "if not is_cut then redis"),
        ("if is_cut and not is_stray then", "if is_cut then"),
        ("redis.call('RENAME', claim, rest)", ""),
        ("if body_at then redis.call('RENAME', of_claim, of_rest) end", ""),
        ("record.name, record.held = rest_name, held - read", "record.name = rest_name"),
        ("record.consumer = string.gsub(record.consumer, REST, '')", ""),
        ("is_stray and name or rest_name", "rest_name"),
        ("is_stray and name or rest_name", "name"),
    ),
    *of("include/store", "large", ("note_largest(keys[k + 2], messages.largest)", "")),
    *of(
        "publish",
        "large",
        ("if (i - 1) % values == CONTENT then", "if true then"),
        ("math.max(largest, #value)", "#value"),
    ),
    *of(
        "claim", "large", ("slot.largest = largest_of(counted[3], counted[1])", "slot.largest = 1")
    ),
    *of(
        "include/take",
        "large",
        ("bytes = bytes + #items[i]", ""),
        ("bytes = bytes + #twins[i + k - 1]", ""),
        ("passed_over + bytes\n", "passed_over\n"),
        ("or passed_over < enough_bytes and fit > 0)", "or fit > 0)"),
        ("BYTES_A_CLAIM * math.min(1, 2 / claims)", "BYTES_A_CLAIM"),
        ("math.min(1, 2 / claims)", "math.min(1, 1 / claims)"),
        (
            "      if descending then return redis.call('ZRANGE', store, first",
            "      if false then return redis.call('ZRANGE', store, first",
        ),
        ("local first, last = rank + done, rank", "local first, last = done, rank"),
        ("take(rank, upto - past, fit,", "take(rank, upto - past, most,"),
        ("kept_for_last > 0 and enough_bytes * 7 / 8 or enough_bytes", "enough_bytes"),
        ("kept_for_last > 0 and enough_bytes * 7 / 8 or enough_bytes", "enough_bytes * 7 / 8"),
        ("fitting(first_rank, math.min(lead,", "fitting(0, math.min(lead,"),
        ("more = fitting(first_rank + lead, math", "more = fitting(0, math"),
        ("limit - lead), enough_bytes - bytes", "limit - lead), enough_bytes"),
        ("limit - taken), enough_bytes - bytes", "limit - taken), enough_bytes"),
        ("more = fitting(first_rank + lead -", "more = fitting(0 * lead -"),
    ),
    *of(
        "publish",
        "large",
        ("BYTES_A_CALL, function", "math.huge, function"),
        ("bytes = bytes + #value", "bytes = bytes + 1"),
    ),
    *of(
        "requeue",
        "large",
        ("BYTES_A_CALL, function", "math.huge, function"),
        ("#contents[k] + #(death or '')", "#contents[k]"),
        ("asked[2 * (done + k)]", "asked[2 * k]"),
        ("for i = 1, 2 * looked_at, 2 do", "for i = 1, #asked, 2 do"),
        ("return {0, looked_at} end", "return {0, #asked} end"),
        ("return {#found, looked_at}", "return {#found, #found}"),
    ),
    *of(
        "forget",
        "forget",
        ("now_ms() - kept_ms", "now_ms()"),
        ("local MESSAGES_AT_MOST = 2048", "local MESSAGES_AT_MOST = 2056"),
        ("redis.call('ZREMRANGEBYRANK', dead, 0, how_many - 1)", ""),
        ("redis.call('HDEL', deaths, unpack(ended))", ""),
        ("bytes = bytes + #content", ""),
        ("count(stats, 'forgotten', deleted)", ""),
        ("'-inf', until_ms", "'-inf', '+inf'"),
        ("deleted < over and 1 or 0", "0"),
        ("deleted < over and 1 or 0", "1"),
    ),
    *of("forget", "obstacles", ("if wrong then return wrong end", "")),
    *of(
        "figures",
        "figures",
        ("has_due_times and lowest(", "lowest("),
        ("lowest(store, '(16',", "lowest(store, '-inf',"),
        ("if record.deadline <= now then add('expired'", "if true then add('expired'"),
        ("math.min(time, earliest[name] or time)", "time"),
        ("if record.held > 0 then", "if true then"),
        ("add('held', record.held)", "add('held', record.sealed)"),
        ("add('expired', record.held)", "add('expired', 1)"),
        ("if record.sealed > 0 then", "if true then"),
        ("counters[fields[i]] or 0", "0"),
        ("if is_consumer(name) then", "if true then"),
        ("math.max(known.at, string", "math.min(known.at, string"),
        ("known.slots + 1", "1"),
        ("known.holds + (", "("),
    ),
    *of(
        "include/records",
        "suspects",
        ("LEVEL, CLAIMED_WITH, ALONE = 32,", "LEVEL, CLAIMED_WITH, ALONE = 16,"),
        ("{256, 16, 1, 1}, 4", "{256, 32, 1, 1}, 4"),
        ("{256, 16, 1, 1}, 4", "{512, 16, 1, 1}, 4"),
        ("{256, 16, 1, 1}, 4", "{256, 16, 1, 2}, 4"),
        ("{256, 16, 1, 1}, 4", "{256, 16, 1}, 3"),
        ("return -level * LEVEL end", "return -level * LEVEL - 16 end"),
        ("math.floor(-score / LEVEL)", "math.ceil(-score / LEVEL)"),
        ("score < 0 and -score % LEVEL or score", "score"),
    ),
    *of(
        "claim",
        "suspects",
        ("ARGV[13] == '1', ARGV[14] == '1'", "ARGV[13] == '1', true"),
        ("limit, descending, alone)", "limit, descending)"),
    ),
    *of(
        "due",
        "due",
        ("level_of(first) == ALONE", "false"),
        ("level_of(first) == ALONE", "level_of(first) > 0"),
        ("if second and second <= until_ms then alone", "if second then alone"),
        ("level_of(score_of_retry(waiting[2])) == ALONE", "false"),
        ("alone and not held and 1 or 0", "alone and 1 or 0"),
    ),
    *of("include/deadlines", "suspects release", ("or LOST", "or LONG_PAST")),
    *of("abandon", "suspects", ("or record.run < run) and LOST", ") and LOST")),
    *of(
        "give_back",
        "give_back reasons suspects",
        ("record.deadline <= LOST and GIVEN_BACK or", ""),
        ("record.deadline <= LOST and", "true and"),
        ("record.deadline <= LOST and", "record.deadline == LONG_PAST and"),
        ("record.deadline == LONG_PAST and return_messages or return_lost", "return_messages"),
        ("record.deadline == LONG_PAST and return_messages or return_lost", "return_lost"),
        ("record.deadline > now or record.held == 0", "record.held == 0"),
        ("record.deadline > now or record.held == 0", "record.deadline > now"),
        ("or {run = UNDELIVERED, deadline = 0", "or {run = 1, deadline = 0"),
        ("record.deadline > now", "record.deadline >= now - 1000"),
        ("redis.call('UNLINK', claim, of_claim)", "redis.call('UNLINK', of_claim)"),
        ("redis.call('HDEL', slot.claims, name)", ""),
        ("if record.run == UNDELIVERED then", "if false then"),
        ("if record.run == UNDELIVERED then", "if true then"),
        ("return {read, is_cut", "return {2 * read, is_cut"),
    ),
    *of(
        "abandon",
        "abandon",
        ("if record.consumer == consumer and record.held == 0 then", "if record.held == 0 then"),
        ("elseif record.consumer == consumer then", "else"),
        ("if refused then return refused end", ""),
        ("redis.call('HDEL', claims, record.name)", ""),
        ("names[#names + 1] = record.name", ""),
        ("record.deadline = (has_failed or record.run < run) and LOST or LONG_PAST", ""),
        ("(has_failed or record.run", "(record.run"),
        ("record.run < run)", "record.run <= run)"),
        ("    write_record(claims, record)", ""),
        ("header.run, header.seen = run, now_ms()", "header.seen = now_ms()"),
        ("header.run, header.seen = run, now_ms()", "header.run = run"),
        ("header.last_seq, seq)", "seq)"),
        ("header.last_seq, seq)", "header.last_seq)"),
        ("math.max(header.settled, header", "math.max(header"),
    ),
    *of(
        "drop",
        "drop",
        ("if not all then return names end", ""),
        ("all = all and named[name] ~= nil", "all = named[name] ~= nil"),
        ("KEYS_A_CALL = 9, 4096", "KEYS_A_CALL = 9, 9999"),
        ("for i = 1, #KEYS, KEYS_A_CALL do", "for i = 1, 9, KEYS_A_CALL do"),
        ("for i = 1, #KEYS, KEYS_A_CALL do", "for i = 7, #KEYS, KEYS_A_CALL do"),
    ),
    *of(
        "begin_run",
        "begin_run",
        ("if of and of ~= topic and of ~= earlier then", "if false then"),
        (" and of ~= earlier then", " then"),
        ("local last = math.max(", "local last = math.min("),
        ("math.max(last + 1, now_ms())", "last + 1"),
        ("math.max(last + 1, now_ms())", "now_ms()"),
        ("if forget_ms > 0 then", "if false then"),
        ("if forget_ms > 0 then", "if true then"),
    ),
    *of(
        "note_committed",
        "note_committed",
        ("math.max(seq,", "math.min(seq,"),
        ("redis.call('HSET', key, 'settled', ", "redis.call('HSET', key, 'run', "),
    ),
    *of(
        "include/deadlines",
        "renew release",
        ("and record.seq > since", ""),
        ("if refused then return refused end", ""),
        ("lease_ms > 0 and now + lease_ms or LOST", "now + lease_ms"),
        ("if record.consumer == consumer and", "if true and"),
        (
            "if record.consumer == consumer and",
            "if record.consumer == consumer and record.run == run and",
        ),
    ),
    *of(
        "renew",
        "renew",
        ("tonumber(ARGV[3])", "0"),
        ("lease_ms, since)", "lease_ms, 0)"),
    ),
    *of(
        "purge",
        "purge",
        ("asked == '' or tonumber(score) == tonumber(asked)", "true"),
        ("if counter ~= '' then redis", "if false then redis"),
        ("local asked = ARGV[2 * k]", "local asked = ''"),
        ("'ZREM', queue, unpack(wanted))", "'ZREM', queue, wanted[1])"),
        ("redis.call('HDEL', belongings, unpack(wanted))", ""),
    ),
    *of(
        "release",
        "release",
        ("NO_LEASE, EVERY_BATCH = 0, 0", "NO_LEASE, EVERY_BATCH = 60000, 0"),
        ("NO_LEASE, EVERY_BATCH = 0, 0", "NO_LEASE, EVERY_BATCH = 0, 99"),
    ),
    *of(
        "replay",
        "replay",
        ("record.consumer == consumer and record.seq > seq_from", "record.seq > seq_from"),
        ("record.seq > seq_from", "record.seq >= seq_from"),
        ("record.seq <= seq_to", "record.seq < seq_to"),
        ("record.deadline, record.replayed = now + lease_ms, run", "record.replayed = run"),
        (
            "record.deadline, record.replayed = now + lease_ms, run",
            "record.deadline = now + lease_ms",
        ),
        ("listed[#listed + 1] = record.sealed", "listed[#listed + 1] = record.held"),
        ("header.run, header.seen = run, now", "header.seen = now"),
        ("if refused then return refused end", ""),
    ),
    *of(
        "requeue",
        "requeue send_at",
        ("score > 16", "score >= 16"),
        ("score <= 2 ^ 53", "true"),
        ("local waiting = redis.call('ZREM', retry, unpack(found))", "local waiting = 0"),
        ("redis.call('HDEL', deaths, unpack(found))", ""),
        ("'NX', unpack(scored)", "unpack(scored)"),
        ("'accepted', #found)", "'accepted', 0)"),
        ("can_be_past and due_since_change(", "false and due_since_change("),
        ("can_be_past and due_since_change(", "due_since_change("),
        ("lowest = math.min(lowest, score)", ""),
    ),
    *of(
        "rollback",
        "reasons rollback unread",
        ("if verdict == 'uncharged' then", "if false then"),
        ("if verdict == 'uncharged' then", "if true then"),
        ("elseif verdict == 'unread' then", "elseif false then"),
        ("elseif verdict == 'unread' then", "elseif true then"),
        ("elseif verdict == 'bury' then", "elseif false then"),
        ("elseif verdict == 'bury' then", "elseif true then"),
        ("0, now, delay_ms)", "0, now)"),
        ("0, now, delay_ms)", "nil, now, delay_ms)"),
        ("record.run ~= run or", ""),
        ("if not record or record.run", "if record.run"),
        ("if score and not taken[content] then", "if not taken[content] then"),
        ("redis.call('ZREM', claim, unpack(taken))", ""),
        ("record.held = record.held - #taken", ""),
        ("write_record(slot.claims, record)", ""),
        ("return {#taken, named - #taken}", "return {#taken, 0}"),
        ("and not taken[content]", ""),
        ("now, reason_of, delay_ms)", "now, reason_of)"),
        ("ARGV[last + k] or ARGV[last + 1]", "ARGV[last + 1]"),
        ("ARGV[last + k] or ARGV[last + 1]", "ARGV[last + k] or ''"),
        ("unpack(ARGV, CONTENTS_FROM, last)", "unpack(ARGV, CONTENTS_FROM)"),
    ),
    *of(
        "send_first",
        "send_first",
        ("condition = 'NX'", "condition = nil"),
        ("local now = now_ms()", "local now = 0"),
    ),
    *of("send_first", "wake", ("first = first, ", "first = 0, ")),
    *of(
        "include/due_after",
        "send_first",
        ("(now + time_range)\n", "(now - time_range)\n"),
        ("local due = due_of[time_range]", "local due = next(due_of) and due_of[next(due_of)]"),
        ("text_of(now + time_range)", "now"),
    ),
    *of(
        "send_last",
        "send_last",
        ("{sent = sent,", "{condition = 'NX', sent = sent,"),
        ("{sent = sent,", "{condition = 'GT', sent = sent,"),
    ),
    *of(
        "send_at",
        "send_at send_last",
        ("{sent = sent,", "{condition = 'NX', sent = sent,"),
        ("{sent = sent,", "{condition = 'GT', sent = sent,"),
        ("if lowest <= HIGHEST_DELAY then", "if false then"),
        ("if lowest <= HIGHEST_DELAY then", "if lowest == HIGHEST_DELAY then"),
        ("pairs_, lowest, first = dated(", "pairs_, _, first = dated("),
        ("lowest = lowest,", ""),
        ("now_ms(), function", "0, function"),
    ),
    *of(
        "include/dated",
        "send_at publish",
        ("if score > HIGHEST_DELAY then", "if true then"),
        ("if score > HIGHEST_DELAY then", "if false then"),
        ("if score > HIGHEST_DELAY then", "if score ~= HIGHEST_DELAY then"),
        ("for i = 1,", "for i = 2,"),
        ("if score < lowest then lowest = score end", ""),
        ("local due = due_of[score]", "local due = next(due_of) and due_of[next(due_of)]"),
        ("text_of(now - score)", "text_of(now + score)"),
        ("text_of(now - score)", "text_of(now)"),
    ),
    *of(
        "figures",
        "send_at",
        ("math.max(first_due, since)", "math.min(first_due, since)"),
        ("math.max(first_due, since)", "first_due"),
        ("math.min(now, math.max(", "(math.max("),
    ),
    *of(
        "include/due_since",
        "send_at",
        ("store, '(16',", "store, '-inf',"),
        ("if lowest >= now or has_due(store, lowest) then return 0 end", ""),
        ("lowest >= now or ", ""),
        (" or has_due(store, lowest)", ""),
        ("if has_due(store, noted) then return 0 end", ""),
        ("has_due(store, now) and", "false and"),
        ("first_due(store, math.max(lowest, noted), now) or now", "lowest or now"),
        ("then at = middle else before = middle", "then at = middle else before = at"),
        ("at - before > 1", "at - before > 2"),
        ("return since - noted", "return since"),
    ),
    *of(
        "include/store",
        "send_first send_last send_at",
        ("count(keys[k + 2], 'dueSince'", "count(keys[from + 2], 'dueSince'"),
        ("if redis.call('EXISTS', retry) == 1 then", "if false then"),
        ("counts = counts or {", "counts = {"),
        ("contents[i / 2] = pairs_[i]", "contents[i / 2] = pairs_[2]"),
        ("count(keys[k + 2], 'merged', messages.sent - new)", ""),
        (
            "for k = from, #keys, KEYS_A_GROUP do\n    local change",
            "for k = from, from, KEYS_A_GROUP do\n    local change",
        ),
    ),
    *of(
        "unread",
        "unread",
        ("record.seq == seq and record.run == run", "record.seq == seq"),
        ("record.seq == seq and record.run == run", "record.run == run"),
        ("record.consumer == consumer and", ""),
        ("record.run = UNDELIVERED", ""),
        ("if refused then return refused end", ""),
    ),
]
MUTANTS += [
    *of(
        "counts",
        "counts",
        ("descending and ARGV[i] or '-inf'", "'-inf'"),
        ("for i = 2, #ARGV do", "for i = 2, 2 do"),
        ("descending and '+inf' or ARGV[i])", "descending and '+inf' or '(' .. ARGV[i])"),
    ),
    *of(
        "stage",
        "stage",
        ("if held == after then return after end", ""),
        ("if held ~= before or moved > 0", "if held > before or moved > 0"),
        ("if held ~= before or moved > 0", "if held ~= before"),
        ("if not begun then write_stage(stages, name, text_of(now_ms()), 0, values) end", ""),
        ("if not begun then write_stage", "if true then write_stage"),
        ("before + sent", "before + 1"),
    ),
    *of(
        "seal",
        "seal",
        ("if sealed > batch then", "if false then"),
        ("if sealed == batch or pending then", "if sealed == batch then"),
        ("if sealed == batch or pending then", "if pending then"),
        ("'messages', ARGV[3])", "'messages', 0)"),
        ("'manifest', manifest,", "'manifest', '',"),
    ),
    *of(
        "page",
        "page",
        ("redis.call('ZCOUNT', queue, '-inf', highest)", "redis.call('ZCARD', queue)"),
        (
            "redis.call('ZRANK', queue, after_content) + 1",
            "redis.call('ZRANK', queue, after_content)",
        ),
        (
            "== tonumber(after_score) then",
            "then",
        ),
        ("return below(after_score)", "return below(after_score) + 1"),
        ("past - first), enough_bytes, function", "past - first), math.huge, function"),
        ("math.min(most, past - first)", "past - first"),
        ("bytes = bytes + add(contents[k]) + ", "bytes = add(contents[k]) + "),
        ("redis.call('ZCARD', queue) - redis.call('ZCOUNT', queue, lowest, '+inf')", "0"),
        ("if after_score == '' then", "if false then"),
        ("first + read < past and 1 or 0", "0"),
        ("add(items[2 * k])", "add(items[2])"),
        ("for i = 1, #items, 2 do contents", "for i = 1, 1 do contents"),
    ),
    *of(
        "publish",
        "publish",
        ("if not begun or moved + held ~= total then", "if moved + held ~= total then"),
        ("if not begun or moved + held ~= total then", "if not begun or held > total then"),
        ("if not begun or moved + held ~= total then", "if not begun or moved + held < total then"),
        ("local held =", "moved = 0 local held ="),
        ("begun, moved + taken, values)", "begun, taken, values)"),
        ("begun, moved + taken, values)", "0, moved + taken, values)"),
        (
            "write_stage(stages, name, begun, moved + taken, values)",
            "redis.call('HDEL', stages, name)",
        ),
        ("how_many * values)) do", "how_many)) do"),
        ("read = read + how_many * values", ""),
        (
            "condition = 'NX'",
            "condition = nil",
        ),
        ("pairs_, lowest, first = dated(pairs_, now)", ""),
        ("lowest = lowest,", ""),
        ("elseif send_script == 'send_at' then", "else"),
        ("if send_script == 'send_first' then", "if true then"),
        ("taken < held and 1 or 0", "0"),
        ("taken < held and 1 or 0", "taken <= held and 1 or 0"),
    ),
    *of(
        "discard",
        "discard",
        ("redis.call('HDEL', stages, unpack(ARGV))", ""),
        ("redis.call('UNLINK', unpack(KEYS, 2))", "#KEYS - 1"),
    ),
    *of(
        "conclude",
        "conclude",
        ("if sealed_batch(sink) ~= batch then return 0 end", ""),
        ("redis.call('HGET', sink, 'announced') ~= name", "false"),
        (
            "redis.call('HGET', sink, 'announced') ~= name",
            "redis.call('HEXISTS', sink, 'announced') == 0",
        ),
        ("redis.call('HEXISTS', sink, 'manifest') == 1 and ", ""),
        ("redis.call('HDEL', sink, 'manifest', 'announced')", ""),
        (
            "redis.call('HDEL', sink, 'manifest', 'announced')",
            "redis.call('HDEL', sink, 'manifest')",
        ),
        ("redis.call('PEXPIRE', sink, forget_ms)", ""),
    ),
    *of(
        "announce",
        "announce",
        ("if sealed_batch(sink) ~= batch then return 0 end", ""),
        ("if not manifest then return 1 end", "if not manifest then return 0 end"),
        ("if redis.sha1hex(manifest) ~= digest then return 0 end", ""),
        ("write_though_full(sink)", ""),
        ("redis.call('HSET', sink, 'announced', name)", ""),
    ),
    *of(
        "unseal",
        "unseal",
        ("if sealed_batch(sink) ~= batch then return 0 end", ""),
        ("redis.sha1hex(redis.call('HGET', sink, 'manifest') or '') ~= digest", "false"),
        ("'manifest', 'messages', 'announced')", "'messages', 'announced')"),
        ("'manifest', 'messages', 'announced')", "'manifest', 'announced')"),
        ("'manifest', 'messages', 'announced')", "'manifest', 'messages')"),
        ("batch - 1)", "-1)"),
        ("redis.call('PEXPIRE', sink, forget_ms)", ""),
    ),
]
# What other files see: a key of another type, a record of another version, a full server.
MUTANTS += [
    *of("send_first", "obstacles", ("if wrong then return wrong end", "")),
    *of("send_last", "obstacles", ("if wrong then return wrong end", "")),
    *of("send_at", "obstacles", ("if wrong then return wrong end", "")),
    *of("include/types", "obstacles", ("found ~= wanted[i + 1] and found ~= 'none'", "false")),
    *of("include/records", "obstacles", ("if not made or not consumer", "if not consumer")),
    *of("drop", "obstacles", ("if wrong then return wrong end", "")),
    *of("claim", "obstacles", ("or wrong_type(own, 'zset', own_bodies, 'hash')", "")),
    *of("claim", "obstacles", ("'zset', own_bodies, 'hash')", "'zset')")),
    *of(
        "give_back",
        "obstacles",
        ("'zset', of_claim, 'hash', rest", "'zset', rest"),
        ("rest, 'zset', of_rest, 'hash')", "of_rest, 'hash')"),
        ("rest, 'zset', of_rest, 'hash')", "rest, 'zset')"),
    ),
    *of("rollback", "obstacles", ("'zset', of_claim, 'hash')", "'zset')")),
    *of("include/slot", "obstacles", (",\n    slot.bodies, 'hash')", ")")),
    *of("include/store", "obstacles", ("'hash',\n      keys[k + 3], 'hash')", "'hash')")),
    *of("page", "obstacles", ("or wrong_type(belongings, 'hash')", "")),
    *of("claim", "obstacles", ("for k = 11, #KEYS do", "for k = 12, #KEYS do")),
    *of("claim", "obstacles", ("for k = 11, #KEYS do", "for k = 11, 12 do")),
    *of(
        "include/headers",
        "claim_again commit replay",
        ("if run < header.run then", "if false then"),
    ),
    *of("include/time", "send_first", ("time[1] * 1000", "time[1]")),
    *of("include/full_server", "full_server", ("redis.call('HDEL', hash, '')", "")),
]
HASH_OF = {"begin_run": "key", "note_committed": "key", "plan": "consumers", "pause": "consumers"}
for name in (
    "begin_run",
    "note_committed",
    "plan",
    "pause",
    "replay",
    "unread",
    "commit",
    "abandon",
):
    hash_of = HASH_OF.get(name, "claims")
    MUTANTS += of(name, "full_server", (f"write_though_full({hash_of})", ""))
MUTANTS += of("claim", "full_server", ("write_though_full(slot.claims)", ""))


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
    faulty, printed = folder / "lua", folder / "printed"
    shutil.copytree(FOLDER, faulty)
    script = faulty / mutant.file
    script.write_text(script.read_text().replace(mutant.right, mutant.wrong, 1))
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
    endless = Mutant("alter.lua", "redis.call('HDEL', topics, topic)", "while true do end", "alter")
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
