-- The first phase of delivery: moves due messages of one slot into the PrepareQueue, as the claim
-- consumer:seq:ordinal. A repeated call for that claim returns the same messages.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 consumers, 8 stats
-- ARGV: 1 consumer, 2 run, 3 seq, 4 ordinal, 5 limit (1..2048), 6 lease in ms, 7 dueBefore in ms
--       or '', 8 epoch or '', 9 replayOnly 0/1, 10 descending 0/1, 11 maxRetries, 12 backoff: waits
--       in ms, separated by commas, 13 mark of the batch's plan, '' for a batch without one
-- Returns {messages given back or taken from the retry queue, 0 or why nothing was taken (1 a
--   higher epoch owns the slot, 2 the plan is lost, 3 the topic is paused: in cases 2 and 3 no
--   claim was made), {content, ...} in delivery order, their scores in the store as one text
--   separated by spaces, {retriesLeft, ...}, when the claim was made in ms}; retriesLeft is empty if
--   all of them have ARGV 11 left.
-- Errors: RMQ_SUPERSEDED, RMQ_SETTLED, RMQ_LOST, RMQ_EXCLUSIVE, RMQ_BADCLAIM, RMQ_WRONGTYPE,
--   RMQ_VERSION
-- Bound: limit messages taken, 4096 examined, 1000 moved from the retry queue, 4096 rolled back.
-- Effect: moves
local consumer, run = ARGV[1], tonumber(ARGV[2])
local seq, ordinal = tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, lease_ms, due_before = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local epoch, replay_only, descending = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10] == '1'
local planned = ARGV[13]
local FENCED, PLAN_FORGOTTEN, TOPIC_PAUSED = 1, 2, 3

--- include counters
--- include enter
--- include epochs
--- include full_server
--- include giveback
--- include headers
--- include records
--- include redeliver
--- include retry_queue
--- include server
--- include slot
--- include take
--- include time

local slot, terms = slot_of(KEYS), retry_terms(ARGV[11], ARGV[12])
local consumers = slot.consumers
local refused, header, records, by_field =
  enter(wrong_slot_type(slot), slot.claims, consumers, consumer, run)
if refused then return refused end
-- Ranks are fractions of 2048, so rank 2048 would read as one more retry left.
if not (limit >= 1 and limit <= 2048 and ordinal >= 0 and ordinal <= 15) then
  return redis.error_reply('RMQ_BADCLAIM limit ' .. limit .. ', number ' .. ordinal
    .. ': a claim takes 1 to 2048 messages and is one of 0 to 15')
end
if seq <= header.settled then
  return redis.error_reply(string.format('RMQ_SETTLED batch %.0f of consumer %s is settled', seq, consumer))
end

local now = now_ms()
local field = record_field(consumer, seq, ordinal)
local record = by_field[field]
if not record and (replay_only or seq < header.last_seq
  or seq == header.last_seq and ordinal <= header.last_ordinal) then
  return redis.error_reply('RMQ_LOST claim ' .. field .. ' is gone: its lease ended and its '
    .. 'messages were given back, or Redis has lost it')
end
-- The caller may have read this claim before Redis lost it. If the claim were made again, it would
-- hold other messages, which nobody reads and the batch's commit removes.
if not record and planned ~= '' and (header.mark ~= planned or header.server ~= server_id()) then
  return {0, header.paused and TOPIC_PAUSED or PLAN_FORGOTTEN, {}, '', {}, now}
end
local stored_epoch = tonumber(redis.call('HGET', consumers, EPOCH))
local shared = not record and needs_an_epoch(slot.store, stored_epoch, epoch)
if shared then return shared end

write_though_full(slot.claims)
header.run, header.seen = run, now
if record then
  write_header(consumers, header)
  return redeliver(slot, record, run, now + lease_ms)
end
-- The plan ends here: after a resume, another read would find messages where this one found none.
if header.paused then
  header.mark = NO_PLAN
  write_header(consumers, header)
  return {0, TOPIC_PAUSED, {}, '', {}, now}
end

local until_ms = due_before and math.min(now, due_before) or now
local moved = due_retries(slot, until_ms)
-- The caller's own earlier batches come first, because its next commit would remove their messages.
local own = reap(slot, terms, records, now, 4096, function(other)
  return other.consumer ~= consumer or other.seq == seq
end)
moved = moved + own + reap(slot, terms, records, now, 4096 - own, function(other)
  return other.consumer == consumer
end)
local fenced = epoch and stored_epoch and epoch < stored_epoch
local held = false
if epoch then
  for _, other in ipairs(records) do
    held = held or other.consumer ~= consumer and held_messages(slot.prepare, other) > 0
  end
  if not fenced then redis.call('HSET', consumers, EPOCH, ARGV[8]) end
end

local claim = {field = field, stamp = free_stamp(slot.prepare, records, now), run = run,
  deadline = now + lease_ms, moved = moved, made = now, replayed = 0}
local contents, scores, left = {}, {}, {}
if not fenced and not held then
  contents, scores, left =
    take_due(slot, claim.stamp, until_ms, limit, descending, terms.max_retries)
end
claim.count = #contents
if claim.count == 0 then claim.stamp = 0 end
write_record(slot.claims, claim)
local first_scores_text = table.concat(scores, ' ')
if claim.count > 0 then redis.call('HSET', slot.first, field, first_scores_text) end
header.last_seq, header.last_ordinal = seq, ordinal
write_header(consumers, header)
count(slot.stats, 'claimed', claim.count)
return {moved, fenced and FENCED or 0, contents, first_scores_text, left, now}
