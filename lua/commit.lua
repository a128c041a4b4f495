-- The second phase of delivery: removes the messages that a run has claimed or replayed in a slot.
-- Claims of earlier runs stay, because nobody has finished them: Redis may have lost writes and
-- hold them again, or the topic was not read for a while. They are given back after their lease.
-- KEYS: 1 prepare, 2 claims, 3 first, 4 consumers, 5 stats
-- ARGV: 1 consumer, 2 run, 3 seq: the last batch to commit, 4 since: the batch before the first
--       one, 5 an earlier run whose claims are committed, too (0: every run), or ''
-- Returns {1 if another call must commit more records, else 0; messages claimed; messages that the
--   claims moved; messages committed; records; 1 if the batch was already settled here, else 0}.
--   The four numbers count the records that this call removed.
-- Errors: RMQ_SUPERSEDED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 8 records, 16384 messages.
-- Effect: moves
local prepare, claims, first, consumers, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumer, run, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local since, finisher = tonumber(ARGV[4]), tonumber(ARGV[5])
local RECORDS_A_CALL, EVERY_RUN = 8, 0

--- include counters
--- include enter
--- include full_server
--- include headers
--- include records
--- include time
--- include types

local refused, header, records = enter(
  wrong_type(prepare, 'zset', claims, 'hash', first, 'hash', consumers, 'hash', stats, 'hash'),
  claims, consumers, consumer, run)
if refused then return refused end

local function is_of(record, of_run) return record.run == of_run or record.replayed == of_run end

write_though_full(claims)
-- A commit whose reply was lost is repeated, and finds no records: its messages are not lost.
local again = header.settled >= seq and 1 or 0
local done, more, claimed, moved, held = {}, 0, 0, 0, 0
for _, record in ipairs(records) do
  if record.consumer == consumer and record.seq > since and record.seq <= seq
    and (is_of(record, run) or finisher == EVERY_RUN or finisher and is_of(record, finisher)) then
    if #done == RECORDS_A_CALL then
      more = 1
      break
    end
    done[#done + 1] = record
    claimed, moved = claimed + record.count, moved + record.moved
    held = held + held_messages(prepare, record)
  end
end
-- UNLINK a queue that holds nothing else: Redis then frees its memory in another thread.
local whole = held > 0 and held == redis.call('ZCARD', prepare)
if whole then redis.call('UNLINK', prepare) end
for _, record in ipairs(done) do
  if record.stamp > 0 and not whole then
    redis.call('ZREMRANGEBYSCORE', prepare, claim_range(record.stamp))
  end
  forget_record(claims, first, record)
end
header.run, header.settled, header.seen = run, math.max(header.settled, seq), now_ms()
write_header(consumers, header)
count(stats, 'committed', held)
return {more, claimed, moved, held, #done, again}
