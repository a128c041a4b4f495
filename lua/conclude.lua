-- Notes that everything a sealed batch consists of is published.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 forget the sink when it is not used for this long, in ms
-- Returns 1, or 0 when another batch is sealed by now.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
local sink, batch, forget_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2]

--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
if tonumber(redis.call('HGET', sink, 'batch') or -1) ~= batch then return 0 end
redis.call('HDEL', sink, 'manifest')
redis.call('PEXPIRE', sink, forget_ms)
return 1
