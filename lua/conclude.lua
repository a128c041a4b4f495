-- Notes that everything a sealed batch consists of is published, if nobody and nothing has undone
-- the announcement of it.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 the announcement's name, 3 forget the sink when it is not used for this long, in ms
-- Returns 1 (also when the batch is concluded already), or 0 when another batch is sealed, or another
--   announcement or none is there.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local sink, batch, name, forget_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

--- include sink
--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
if sealed_batch(sink) ~= batch then return 0 end
if redis.call('HEXISTS', sink, 'manifest') == 1 and redis.call('HGET', sink, 'announced') ~= name then
  return 0
end
redis.call('HDEL', sink, 'manifest', 'announced')
redis.call('PEXPIRE', sink, forget_ms)
return 1
