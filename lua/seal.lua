-- Decides what a batch of an exactly-once sink consists of. The first caller's manifest stays,
-- whoever asks again for that batch gets it back: a replay adds nothing to it.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 manifest: the stages to publish, in a text that only the caller reads, 3 how many
--   messages they hold; kept when the manifest is gone
-- Returns {sealed batch, its manifest, or '' once it is published}. An earlier batch that is not
--   published yet is returned instead; publish and conclude it, then call again.
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
  return redis.error_reply(string.format('RMQ_RESTORED batch %.0f comes again, but batch %.0f was '
    .. 'sent already (%s)', batch, sealed, sink))
end
local pending = redis.call('HGET', sink, 'manifest')
if sealed == batch or pending then return {sealed, pending or ''} end
write_though_full(sink)
redis.call('HSET', sink, 'batch', ARGV[1], 'manifest', manifest, 'messages', ARGV[3])
redis.call('PERSIST', sink)
return {batch, manifest}
