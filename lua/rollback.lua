-- Rolls back single messages of one claim: to the store, to the retry queue for a while, or to the
-- DeadQueue when no retry is left. What that claim and run do not hold is left alone.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 stats
-- ARGV: 1 consumer:seq:j, 2 run, 3 delay in ms or '' for the topic's backoff, 4 maxRetries,
--       5 backoff: ms, by commas, 6.. contents
-- Returns {rolled back, left alone}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: what the caller sends, at most 2048 contents.
-- Effect: moves
local store, prepare, retry, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local claims, first, stats = KEYS[5], KEYS[6], KEYS[7]
local field, run, delay_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local max_retries, backoff = tonumber(ARGV[4]), {}
for wait in string.gmatch(ARGV[5], '%d+') do backoff[#backoff + 1] = tonumber(wait) end
local CONTENTS_FROM = 6

--- include time
--- include types
--- include records
--- include giveback

local wrong = wrong_type(store, 'zset', prepare, 'zset', retry, 'zset', dead, 'zset',
  claims, 'hash', first, 'hash', stats, 'hash')
if wrong then return wrong end
local records, by_field = read_records(claims)
if not records then return by_field end
local record, named = by_field[field], #ARGV - CONTENTS_FROM + 1
if not record or record.run ~= run or record.stamp == 0 or named == 0 then return {0, named} end

local base, messages, taken = record.stamp * 1000, {}, {}
for k, score in ipairs(redis.call('ZMSCORE', prepare, unpack(ARGV, CONTENTS_FROM))) do
  local content = ARGV[CONTENTS_FROM + k - 1]
  score = tonumber(score or -1)
  if score >= base and score < base + 1000 and not taken[content] then
    taken[content] = true
    messages[#messages + 1] = {content, math.floor(score) - base}
    taken[#taken + 1] = content
  end
end
if #taken > 0 then redis.call('ZREM', prepare, unpack(taken)) end
give_back(messages, now_ms(), delay_ms and function() return delay_ms end or backoff_ms)
return {#messages, named - #messages}
