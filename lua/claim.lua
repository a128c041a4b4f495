-- The first phase of delivery: moves due messages of one slot out of the store, into a claim of their
-- own, consumer:seq:ordinal. A repeated call for that claim changes no message of it. The caller
-- reads the messages by a ZRANGE behind this call, in the order of the store.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 claims, 6 consumers, 7 stats, 8 bodies, 9 the claim, 10 its
--       bodies, 11 an empty sorted set, 12.. other claims of the slot
-- ARGV: 1 consumer, 2 run, 3 seq, 4 ordinal, 5 limit (1..8192), 6 lease in ms, 7 dueBefore in ms
--       or '', 8 epoch or '', 9 replayOnly 0/1, 10 descending 0/1, 11 maxRetries, 12 mark of the
--       batch's plan, '' for a batch without one, 13 whether what has expired dies 0/1, 14 whether the
--       caller has nothing else in progress 0/1, 15.. the names of KEYS 12..
-- Returns {messages held, 0 or why nothing was taken (1 a higher epoch owns the slot, 2 the plan is
--   lost, 3 the topic is paused or held: in cases 2 and 3 no claim was made), messages moved from the retry
--   queue, when the claim was made in ms, maxRetries then, deliveries charged since, messages
--   that the claim took, messages that had expired}; or
--   {-1, names of claims of the slot} if KEYS lacks one that may hold a content of the store: then
--   nothing was done.
-- Errors: RMQ_FENCED, RMQ_ALREADYCOMMITTED, RMQ_LEASELOST, RMQ_EXCLUSIVE, RMQ_BADCLAIM, RMQ_STRAYCLAIM,
--   RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 16384 messages looked at, 65536 times for a message in another claim (take.lua); 1000 moved
--   from the retry queue, or a MiB, and up to 16 more if these are larger; 8 MiB of contents, or one
--   message (bytes.lua); 8 MiB of bodies and the part that exceeds them (take_bodies.lua).
-- Effect: moves
local consumers, own, own_bodies, part = KEYS[6], KEYS[9], KEYS[10], KEYS[11]
local consumer, run = ARGV[1], tonumber(ARGV[2])
local seq, ordinal = tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, lease_ms, due_before = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local epoch, replay_only, descending = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10] == '1'
local max_retries, planned, expired_die, alone = tonumber(ARGV[11]), ARGV[12], ARGV[13] == '1', ARGV[14] == '1'
local OTHER_KEYS, OTHER_NAMES = 12, 15
local FENCED, PLAN_FORGOTTEN, TOPIC_PAUSED = 1, 2, 3
local MESSAGES_AT_MOST, HIGHEST_ORDINAL = 8192, 15

--- include bytes
--- include counters
--- include enter
--- include epochs
--- include full_server
--- include headers
--- include records
--- include server
--- include slot
--- include take
--- include take_bodies
--- include time
--- include types

local slot = slot_of(KEYS)

local function wrong_types()
  local wrong = wrong_slot_type(slot) or wrong_type(own, 'zset', own_bodies, 'hash')
  for k = 11, #KEYS do wrong = wrong or wrong_type(KEYS[k], 'zset') end
  return wrong
end

local refused, header, records, by_name = enter(wrong_types(), slot.claims, consumers, consumer, run)
if refused then return refused end
if not (limit >= 1 and limit <= MESSAGES_AT_MOST and ordinal >= 0 and ordinal <= HIGHEST_ORDINAL) then
  return redis.error_reply('RMQ_BADCLAIM limit ' .. limit .. ', number ' .. ordinal
    .. ': a claim takes 1 to 8192 messages and is one of 0 to 15')
end
if seq <= header.settled then
  return redis.error_reply(string.format('RMQ_ALREADYCOMMITTED batch %.0f of consumer %s is settled: '
    .. 'it was committed or given back before', seq, consumer))
end

local now = now_ms()
local paused = header.paused_until > now
local name = record_name(consumer, seq, ordinal)
local record = by_name[name]
if not record and (replay_only or seq < header.last_seq
  or seq == header.last_seq and ordinal <= header.last_ordinal) then
  return redis.error_reply('RMQ_LEASELOST claim ' .. name .. ' is gone: its lease ended and its '
    .. 'messages were given back, or Redis has lost it')
end
-- The caller may have read this claim before Redis lost it. If the claim were made again, it would
-- hold other messages, which nobody reads and the batch's commit removes.
if not record and planned ~= '' and (header.mark ~= planned or header.server ~= server_id()) then
  return {0, paused and TOPIC_PAUSED or PLAN_FORGOTTEN, 0, now, max_retries, 0, 0, 0}
end
if is_deserted(header, consumers, slot.stats, slot.store, slot.retry) then
  return {0, 0, 0, now, max_retries, 0, 0, 0}
end
local stored_epoch = tonumber(redis.call('HGET', consumers, EPOCH))
local shared = not record and needs_an_epoch(slot.store, stored_epoch, epoch)
if shared then return shared end

-- A number that grows with every message that comes into the store, except out of the retry queue.
local counted = redis.call('HMGET', slot.stats, 'accepted', 'rolledBack', 'largest')
local arrived = (counted[1] or 0) + (counted[2] or 0)
slot.largest = largest_of(counted[3], counted[1])

-- Returns the keys of all other claims that may hold a content of the store: since they were made,
-- messages have arrived. Or nil and the reply for a caller that has not named them all.
local function other_claims()
  local known, keys, reply = keys_by_name(KEYS, OTHER_KEYS, ARGV, OTHER_NAMES), {}, {-1}
  for _, other in ipairs(records) do
    if other.held > 0 and other.arrivals ~= arrived then
      reply[#reply + 1] = other.name -- unpack would take only 7999
      keys[#keys + 1] = known[other.name]
    end
  end
  if #keys < #reply - 1 then return nil, reply end
  return keys
end

local others
if not record and not paused then
  local unknown
  others, unknown = other_claims()
  if not others then return unknown end
  for _, key in ipairs({own, part}) do
    if redis.call('EXISTS', key) == 1 then
      return redis.error_reply('RMQ_STRAYCLAIM the key ' .. key .. ' holds messages of a claim '
        .. 'whose record is gone. Give them back: rmq expire TOPIC')
    end
  end
end

write_though_full(slot.claims)
header.run, header.seen = run, now
if record then
  write_header(consumers, header)
  -- For a newer run, this is a new delivery, which costs a retry; unless nobody got the last one.
  if record.run > 0 and record.run < run then record.charged = record.charged + 1 end
  record.run, record.deadline = run, now + lease_ms
  write_record(slot.claims, record)
  return {record.held, 0, record.moved, record.made, record.max_retries, record.charged, record.sealed,
    record.expired}
end
-- The plan ends here: after a resume, another read would find messages where this one found none.
if paused then
  header.mark = NO_PLAN
  write_header(consumers, header)
  return {0, TOPIC_PAUSED, 0, now, max_retries, 0, 0, 0}
end

local until_ms = due_before and math.min(now, due_before) or now
local moved = due_retries(slot, until_ms)
local fenced, held_by_others = epoch and stored_epoch and epoch < stored_epoch, false
if epoch then
  for _, other in ipairs(records) do
    held_by_others = held_by_others or other.consumer ~= consumer and other.held > 0
  end
  if not fenced then redis.call('HSET', consumers, EPOCH, ARGV[8]) end
end
local taken, expired = 0, 0
if not fenced and not held_by_others then
  taken = take_due(slot, own, part, others, until_ms, limit, descending, alone)
  taken, expired = take_bodies(slot, own, own_bodies, taken, now, descending, expired_die)
end
write_record(slot.claims, {name = name, made = now, run = run, deadline = now + lease_ms, sealed = taken,
  held = taken, moved = moved, max_retries = max_retries, charged = 0, replayed = 0, arrivals = arrived,
  expired = expired})
header.last_seq, header.last_ordinal = seq, ordinal
write_header(consumers, header)
count(slot.stats, 'claimed', taken)
return {taken, fenced and FENCED or 0, moved, now, max_retries, 0, taken, expired}
