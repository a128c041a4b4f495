-- Fixes the contents of a batch of an exactly-once sink. The first call for a batch decides: later
-- calls return its manifest, so a replay adds nothing to the batch.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 manifest: the stages to publish, in a text that only the caller reads, 3 the
--   number of messages in them; kept when the manifest is deleted
-- Returns {sealed batch, its manifest, or '' once it is published}. If an earlier batch is not
--   published yet, it is the sealed batch: publish and conclude it, then call again.
-- Errors: RMQ_RESTORED (a later batch is sealed), RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local sink, batch, manifest = KEYS[1], tonumber(ARGV[1]), ARGV[2]

--- include full_server
--- include sink
--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
local sealed = sealed_batch(sink)
if sealed > batch then
  return redis.error_reply(string.format('RMQ_RESTORED batch %.0f is repeated, but batch %.0f was '
    .. 'sent already (%s)', batch, sealed, sink))
end
local pending = redis.call('HGET', sink, 'manifest')
if sealed == batch or pending then return {sealed, pending or ''} end
write_though_full(sink)
redis.call('HSET', sink, 'batch', ARGV[1], 'manifest', manifest, 'messages', ARGV[3])
redis.call('PERSIST', sink)
return {batch, manifest}
