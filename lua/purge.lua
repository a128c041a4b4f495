-- Deletes messages of one slot from the DeadQueue for good.
-- KEYS: 1 dead
-- ARGV: contents
-- Returns how many there were.
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 3900.
local dead = KEYS[1]

--- include types

local wrong = wrong_type(dead, 'zset')
if wrong then return wrong end
return redis.call('ZREM', dead, unpack(ARGV))
