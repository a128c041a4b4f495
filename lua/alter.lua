-- Sets, replaces or deletes a field, such as a topic's definition, unless it has changed since the
-- caller read it.
-- KEYS: 1 a hash such as rmq_topics
-- ARGV: 1 field, 2 the text that was read, or '' if there is none, 3 the new one, or '' to delete it
-- Returns 1, or 2 if the new text is there already, or 0 if the text has changed in another way.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: transient
local hash, field, read, new = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

--- include types

local wrong = wrong_type(hash, 'hash')
if wrong then return wrong end
local found = redis.call('HGET', hash, field) or ''
-- It may be the work of this call, which is repeated because its answer was lost.
if found == new then return 2 end
if found ~= read then return 0 end
redis.call('HDEL', hash, field)
if new ~= '' then redis.call('HSET', hash, field, new) end
return 1
