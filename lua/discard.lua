-- Deletes stages of one slot that will never be published.
-- KEYS: 1 stages, 2.. stage
-- ARGV: 1.. the stages' names, in the order of the keys
-- Returns the number of stages that held messages.
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 1000 stages.
-- Effect: moves
local stages = KEYS[1]

--- include types

local wrong = wrong_type(stages, 'hash')
for k = 2, #KEYS do wrong = wrong or wrong_type(KEYS[k], 'list') end
if wrong then return wrong end
local removed = redis.call('UNLINK', unpack(KEYS, 2))
redis.call('HDEL', stages, unpack(ARGV))
return removed
