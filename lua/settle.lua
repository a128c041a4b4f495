-- Notes how far a consumer has settled, beside its run: what a restored checkpoint is known by.
-- KEYS: 1 consumer:<id>
-- ARGV: 1 seq
-- Returns the settled seq.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local key, seq = KEYS[1], tonumber(ARGV[1])

--- include types

local wrong = wrong_type(key, 'hash')
if wrong then return wrong end
local settled = math.max(seq, tonumber(redis.call('HGET', key, 'settled') or 0))
redis.call('HDEL', key, '') -- frees nothing, but lets a full Redis 6.2 run the rest
redis.call('HSET', key, 'settled', string.format('%.0f', settled))
return settled
