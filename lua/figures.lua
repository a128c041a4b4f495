-- Counts the messages in one slot's queues, for people and progress reports.
-- KEYS: 1 store, 2 retry, 3 dead, 4 claims, 5 stats
-- ARGV: 1 descending 0/1, 2 whether scores are due times 0/1
-- Returns {now in ms, stored, of these due, since when in ms or '', claimed, of these expired,
--   earliest deadline in ms or '', waiting for a retry, of these due, earliest retry in ms or '',
--   dead, earliest death in ms or ''}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: reads
local store, retry, dead, claims, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local descending, has_due_times = ARGV[1] == '1', ARGV[2] == '1'

--- include numbers
--- include records
--- include retry_queue
--- include time
--- include types

local wrong =
  wrong_type(store, 'zset', retry, 'zset', dead, 'zset', claims, 'hash', stats, 'hash')
if wrong then return wrong end
local records, version = read_records(claims)
if not records then return version end

-- Returns the lowest score of a sorted set within bounds, or ''.
local function lowest(key, low, high)
  return redis.call('ZRANGEBYSCORE', key, low, high, 'WITHSCORES', 'LIMIT', 0, 1)[2] or ''
end

local now = now_ms()
local until_now = descending and '+inf' or text_of(now)
local due_since = has_due_times and lowest(store, '(16', text_of(now)) or ''
if due_since ~= '' then -- include/due_since; a clock may have been set back
  due_since = text_of(math.min(now, math.max(due_since, redis.call('HGET', stats, 'dueSince') or 0)))
end
local earliest_retry = lowest(retry, '-inf', '+inf')
if earliest_retry ~= '' then
  earliest_retry = text_of(math.floor(earliest_retry / 1000) * 1000)
end
local held, expired, deadline = 0, 0, nil
for _, record in ipairs(records) do
  if record.held > 0 then
    held = held + record.held
    deadline = math.min(deadline or record.deadline, record.deadline)
    if record.deadline <= now then expired = expired + record.held end
  end
end
return {now, redis.call('ZCARD', store), redis.call('ZCOUNT', store, '-inf', until_now),
  due_since,
  held, expired, deadline and text_of(deadline) or '',
  redis.call('ZCARD', retry), redis.call('ZCOUNT', retry, '-inf', waits_over(now)), earliest_retry,
  redis.call('ZCARD', dead), lowest(dead, '-inf', '+inf')}
