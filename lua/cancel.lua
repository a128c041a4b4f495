-- Cancels messages of one slot that no consumer has claimed, in the store and in the retry queue.
-- KEYS: 1 store, 2 retry, 3 stats, 4 bodies
-- ARGV: 1.. contents
-- Returns how many were removed.
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 2048 contents and a MiB of them, or one.
-- Effect: moves
local store, retry, stats, bodies = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local CONTENTS_A_CALL = 7800

--- include counters
--- include types

local wrong = wrong_type(store, 'zset', retry, 'zset', stats, 'hash', bodies, 'hash')
if wrong then return wrong end
local removed = 0
for i = 1, #ARGV, CONTENTS_A_CALL do
  local last = math.min(i + CONTENTS_A_CALL - 1, #ARGV)
  removed = removed + redis.call('ZREM', store, unpack(ARGV, i, last))
    + redis.call('ZREM', retry, unpack(ARGV, i, last))
  redis.call('HDEL', bodies, unpack(ARGV, i, last))
end
count(stats, 'cancelled', removed)
return removed
