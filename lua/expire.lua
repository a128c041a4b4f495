-- Gives back the claims of one slot whose lease has run out, and forgets consumers that were not
-- seen for long and hold nothing. For people and jobs; a query never calls it.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 consumers, 8 stats
-- ARGV: 1 maxRetries, 2 backoff: ms, by commas, 3 forget consumers not seen for this long, in ms
-- Returns {messages given back, consumers forgotten, 1 if another call would do more, else 0}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 4096 messages; 1000 consumers.
-- Effect: moves
local store, prepare, retry, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local claims, first, consumers, stats = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local max_retries, backoff, forget_ms = tonumber(ARGV[1]), {}, tonumber(ARGV[3])
for wait in string.gmatch(ARGV[2], '%d+') do backoff[#backoff + 1] = tonumber(wait) end
local MESSAGES_AT_MOST, CONSUMERS_AT_MOST = 4096, 1000

--- include time
--- include types
--- include records
--- include headers
--- include giveback

local wrong = wrong_type(store, 'zset', prepare, 'zset', retry, 'zset', dead, 'zset',
  claims, 'hash', first, 'hash', consumers, 'hash', stats, 'hash')
if wrong then return wrong end
local records, version = read_records(claims)
if not records then return version end
local now = now_ms()
local given_back = reap(records, now, MESSAGES_AT_MOST, function() return false end)

local holds, empty, more = {}, {}, 0
for _, record in ipairs(records) do
  if held_messages(prepare, record) > 0 then
    holds[record.consumer] = true
    if record.deadline <= now then more = 1 end
  elseif redis.call('HEXISTS', claims, record.field) == 1 then
    empty[#empty + 1] = record
  end
end
local forgotten = {}
for _, consumer in ipairs(redis.call('HKEYS', consumers)) do
  if consumer ~= '@epoch' and not holds[consumer]
    and read_header(consumers, consumer).seen <= now - forget_ms then
    if #forgotten == CONSUMERS_AT_MOST then
      more = 1
      break
    end
    forgotten[#forgotten + 1], forgotten[consumer] = consumer, true
  end
end
for _, record in ipairs(empty) do
  if forgotten[record.consumer] then
    redis.call('HDEL', claims, record.field)
    redis.call('HDEL', first, record.field)
  end
end
if #forgotten > 0 then redis.call('HDEL', consumers, unpack(forgotten)) end
return {given_back, #forgotten, more}
