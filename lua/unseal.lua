-- Takes back the seal of a batch of which a stage is lost: the batch can be staged and sealed anew.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 SHA-1 of its manifest, 3 forget the sink when it is not used for this long, in ms
-- Returns 1, or 0 when it is not this batch that is sealed, has another manifest, or is concluded.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local sink, batch, digest, forget_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

--- include numbers
--- include sink
--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
if sealed_batch(sink) ~= batch then return 0 end
if redis.sha1hex(redis.call('HGET', sink, 'manifest') or '') ~= digest then return 0 end
redis.call('HDEL', sink, 'manifest', 'messages', 'announced')
redis.call('HSET', sink, 'batch', text_of(batch - 1)) -- earlier ones stay refused
redis.call('PEXPIRE', sink, forget_ms)
return 1
