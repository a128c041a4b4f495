-- The second phase of delivery: removes the messages that a run has claimed or replayed in a slot.
-- Claims of earlier runs stay, because nobody has finished them: Redis may have lost writes and
-- hold them again, or the topic was not read for a while. They are given back after their lease.
-- KEYS: 1 claims, 2 consumers, 3 stats, 4.. claims that may be among those to commit, and then as many
--       keys of their bodies
-- ARGV: 1 consumer, 2 run, 3 seq: the last batch to commit, 4 since: the batch before the first
--       one, 5 an earlier run whose claims are committed, too (0: every run), or '', 6.. the names
--       of these claims
-- Returns {messages claimed; messages that the claims moved; messages committed; records; 1 if the
--   batch was already settled here, else 0; messages that had expired; claims of batch seq that the
--   consumer made here and that are gone, 0 if the batch was already settled; names of claims that
--   another call must commit, up to 8}. The other numbers count the records that this call removed.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot; the claims named.
-- Effect: moves
local claims, consumers, stats = KEYS[1], KEYS[2], KEYS[3]
local consumer, run, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local since, finisher = tonumber(ARGV[4]), tonumber(ARGV[5])
local CLAIM_KEYS, CLAIM_NAMES, NAMED_AT_MOST, EVERY_RUN = 4, 6, 8, 0

--- include counters
--- include enter
--- include full_server
--- include headers
--- include records
--- include time
--- include types

local refused, header, records = enter(
  wrong_type(claims, 'hash', consumers, 'hash', stats, 'hash'), claims, consumers, consumer, run)
if refused then return refused end

local function is_of(record, of_run) return record.run == of_run or record.replayed == of_run end

local function to_commit(record)
  return record.consumer == consumer and record.seq > since and record.seq <= seq
    and (is_of(record, run) or finisher == EVERY_RUN or finisher and is_of(record, finisher))
end

write_though_full(claims)
local key_of = keys_by_name(KEYS, CLAIM_KEYS, ARGV, CLAIM_NAMES)
local bodies_of = keys_by_name(KEYS, CLAIM_KEYS + #ARGV - CLAIM_NAMES + 1, ARGV, CLAIM_NAMES)
-- A commit whose reply was lost is repeated, and finds no records: its messages are not lost.
local again = header.settled >= seq and 1 or 0
-- The claims of a slot and batch are made in the order of their ordinals, from 0.
local gone = again == 0 and header.last_seq == seq and header.last_ordinal + 1 or 0
local claimed, moved, held, done, expired, left = 0, 0, 0, 0, 0, {}
for _, record in ipairs(records) do
  if gone > 0 and record.consumer == consumer and record.seq == seq then gone = gone - 1 end
  if to_commit(record) then
    local key = key_of[record.name]
    if record.held == 0 or key then
      if record.held > 0 then redis.call('UNLINK', key, bodies_of[record.name]) end
      redis.call('HDEL', claims, record.name)
      claimed, moved = claimed + record.sealed, moved + record.moved
      held, done, expired = held + record.held, done + 1, expired + record.expired
    elseif #left < NAMED_AT_MOST then
      left[#left + 1] = record.name
    end
  end
end
header.run, header.settled, header.seen = run, math.max(header.settled, seq), now_ms()
if #ARGV < CLAIM_NAMES or not is_deserted(header, consumers, stats) then write_header(consumers, header) end
count(stats, 'committed', held)
return {claimed, moved, held, done, again, expired, gone, unpack(left)}
