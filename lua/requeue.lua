-- Brings messages of one slot back from the DeadQueue as first deliveries.
-- KEYS: 1 store, 2 retry, 3 dead, 4 stats
-- ARGV: 1 score in the store, above 16; 2.. contents
-- Returns how many were brought back.
-- Errors: RMQ_WRONGTYPE, RMQ_BADSCORE
-- Bound: what the caller sends, at most 2048 contents.
local store, retry, dead, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

--- include types

local wrong = wrong_type(store, 'zset', retry, 'zset', dead, 'zset', stats, 'hash')
if wrong then return wrong end
if not (tonumber(ARGV[1]) > 16) then
  return redis.error_reply('RMQ_BADSCORE a score of ' .. ARGV[1] .. ' would be a retry count; above 16')
end
local found, scored = {}, {}
for k, died in ipairs(redis.call('ZMSCORE', dead, unpack(ARGV, 2))) do
  if died and redis.call('ZREM', dead, ARGV[k + 1]) == 1 then
    found[#found + 1] = ARGV[k + 1]
    scored[#scored + 1], scored[#scored + 2] = ARGV[1], ARGV[k + 1]
  end
end
if #found == 0 then return 0 end
local waiting = redis.call('ZREM', retry, unpack(found))
local new = redis.call('ZADD', store, 'NX', unpack(scored)) - waiting
redis.call('HINCRBY', stats, 'accepted', #found)
if new < #found then redis.call('HINCRBY', stats, 'merged', #found - new) end
return #found
