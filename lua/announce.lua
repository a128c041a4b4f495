-- Announces that a sealed batch is published and will be concluded. The caller then checks the
-- evidence in all slots. If Redis loses published messages after that, it also loses this later
-- write, and conclude refuses.
-- KEYS: 1 sink
-- ARGV: 1 batch, 2 SHA-1 of its manifest, 3 a name that no other announcement has
-- Returns 1 (also if the batch is already concluded), or 0 if another batch, or this one with
--   another manifest, is sealed.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: transient
local sink, batch, digest, name = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

--- include full_server
--- include sink
--- include types

local wrong = wrong_type(sink, 'hash')
if wrong then return wrong end
if sealed_batch(sink) ~= batch then return 0 end
local manifest = redis.call('HGET', sink, 'manifest')
if not manifest then return 1 end
if redis.sha1hex(manifest) ~= digest then return 0 end
write_though_full(sink)
redis.call('HSET', sink, 'announced', name)
return 1
