-- Counts the messages of one slot that a claim could take now: those due in store and retry queue,
-- and those of expired claims, once these are given back.
-- KEYS: 1 store, 2 retry, 3 claims, 4 consumers
-- ARGV: 1 consumer, 2 dueBefore in ms or '', 3 epoch or '', 4 descending 0/1
-- Returns {messages, messages held back by another consumer, a higher epoch, a pause or a hold, ms until the
--   wait of a message, a lease or a hold ends, so that there may be more messages, or '', {names of the
--   expired claims that hold messages}, {names of the others that do}, 1 if a message is due that only
--   a reader gets that has nothing else in progress, else 0, the highest score in a store whose order descends,
--   in whole numbers, else 0}.
-- Errors: RMQ_EXCLUSIVE, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: reads
local store, retry, claims, consumers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local consumer, due_before, epoch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local descending = ARGV[4] == '1'

--- include epochs
--- include headers
--- include numbers
--- include records
--- include retry_queue
--- include time
--- include types

local wrong = wrong_type(store, 'zset', retry, 'zset', claims, 'hash', consumers, 'hash')
if wrong then return wrong end
local records, version = read_records(claims)
if not records then return version end
local of_slot = redis.call('HMGET', consumers, EPOCH, PAUSED)
local stored_epoch, paused_until = tonumber(of_slot[1]), until_of(of_slot[2])
local shared = needs_an_epoch(store, stored_epoch, epoch)
if shared then return shared end

local now = now_ms()
local until_ms = due_before and math.min(now, due_before) or now
local count = redis.call('ZCOUNT', store, '-inf', descending and '+inf' or text_of(until_ms))
  + redis.call('ZCOUNT', retry, '-inf', waits_over(until_ms))
local next_ms = nil
local first = tonumber(redis.call('ZRANGE', store, 0, 0, 'WITHSCORES')[2] or 0)
if first > now and not descending then next_ms = first end
local alone = level_of(first) == ALONE
local top = descending and redis.call('ZRANGE', store, 0, 0, 'REV', 'WITHSCORES')[2] or 0
local waiting = redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')
local second = waiting[2] and math.floor(waiting[2] / 1000) * 1000
if second and second > now then next_ms = math.min(next_ms or second, second) end
if second and second <= until_ms then alone = alone or level_of(score_of_retry(waiting[2])) == ALONE end
local held = paused_until > now or epoch ~= nil and stored_epoch ~= nil and epoch < stored_epoch
if paused_until > now and paused_until < math.huge then
  next_ms = math.min(next_ms or paused_until, paused_until)
end
local expired, live = {}, {}
for _, record in ipairs(records) do
  if record.deadline > now then
    held = held or epoch ~= nil and record.consumer ~= consumer and record.held > 0
    next_ms = math.min(next_ms or record.deadline, record.deadline)
    if record.held > 0 then live[#live + 1] = record.name end
  elseif record.held > 0 then
    count = count + record.held
    expired[#expired + 1] = record.name
  end
end
next_ms = next_ms and next_ms - now or ''
return {held and 0 or count, held and count or 0, next_ms, expired, live, alone and not held and 1 or 0, math.floor(top)}
