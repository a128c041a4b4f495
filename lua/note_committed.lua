-- Notes the last batch that a consumer has committed, beside its run. A restored checkpoint is
-- recognized by it.
-- KEYS: 1 consumer:<id>
-- ARGV: 1 seq
-- Returns the seq that is now noted.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local key, seq = KEYS[1], tonumber(ARGV[1])

--- include full_server
--- include numbers
--- include types

local wrong = wrong_type(key, 'hash')
if wrong then return wrong end
local settled = math.max(seq, tonumber(redis.call('HGET', key, 'settled') or 0))
write_though_full(key)
redis.call('HSET', key, 'settled', text_of(settled))
return settled
