-- How many messages of a queue stand before each of some places, in delivery order.
-- KEYS: 1 store, or another queue
-- ARGV: 1 descending 0/1, 2.. whole numbers: the places behind all messages of these scores
-- Returns as many counts as scores.
-- Errors: RMQ_WRONGTYPE
-- Bound: the number of scores.
-- Effect: reads
local store, descending = KEYS[1], ARGV[1] == '1'

--- include types

local wrong = wrong_type(store, 'zset')
if wrong then return wrong end
local counts = {}
for i = 2, #ARGV do
  counts[i - 1] = redis.call('ZCOUNT', store, descending and ARGV[i] or '-inf', descending and '+inf' or ARGV[i])
end
return counts
