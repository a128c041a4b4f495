-- Notes that all stages of a sealed batch are published, if its announcement is still there.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 the announcement's name, 3 forget the sink if it is unused for this long, in ms;
--   0 to keep it
-- Returns 1 (also if the batch is already concluded), or 0 if another batch is sealed, or if the
--   announcement is missing or another one.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local sink, batch, name = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local forget_ms = tonumber(ARGV[3])

--- include sink
--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
if sealed_batch(sink) ~= batch then return 0 end
if redis.call('HEXISTS', sink, 'manifest') == 1 and redis.call('HGET', sink, 'announced') ~= name then
  return 0
end
redis.call('HDEL', sink, 'manifest', 'announced')
if forget_ms > 0 then redis.call('PEXPIRE', sink, forget_ms) end
return 1
