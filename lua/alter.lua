-- Replaces or deletes a topic's definition, unless it has changed since the caller read it.
-- KEYS: 1 rmq_topics
-- ARGV: 1 topic, 2 the definition that was read, 3 the new one, or '' to delete it
-- Returns 1, or 2 if the new definition is there already, or 0 if the definition has changed in another way.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: transient
local topics, topic, read, new = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

--- include types

local wrong = wrong_type(topics, 'hash')
if wrong then return wrong end
local found = redis.call('HGET', topics, topic)
-- It may be the work of this call, which is repeated because its answer was lost.
if (found or '') == new then return 2 end
if found ~= read then return 0 end
redis.call('HDEL', topics, topic)
if new ~= '' then redis.call('HSET', topics, topic, new) end
return 1
