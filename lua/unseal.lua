-- Removes the seal of a batch that has lost a stage, so that it can be staged and sealed again.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 SHA-1 of its manifest, 3 forget the sink if it is unused for this long, in ms;
--   0 to keep it
-- Returns 1, or 0 if another batch is sealed, or if this one has another manifest or is concluded.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local sink, batch, digest = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local forget_ms = tonumber(ARGV[3])

--- include numbers
--- include sink
--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
if sealed_batch(sink) ~= batch then return 0 end
if redis.sha1hex(redis.call('HGET', sink, 'manifest') or '') ~= digest then return 0 end
redis.call('HDEL', sink, 'manifest', 'messages', 'announced')
redis.call('HSET', sink, 'batch', text_of(batch - 1)) -- seal still refuses earlier ones
if forget_ms > 0 then redis.call('PEXPIRE', sink, forget_ms) end
return 1
