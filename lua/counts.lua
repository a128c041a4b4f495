-- Counts the messages that a queue delivers up to and including each of some scores.
-- KEYS: 1 store, or another queue
-- ARGV: 1 descending 0/1, 2.. scores, whole numbers
-- Returns a count for each score.
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
