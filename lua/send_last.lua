-- Stores Priority messages of one slot with the given scores. Of equal contents, the last wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: 1 number of messages, 2 score, content, score, content, ... as strings of MessagePack
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: stores
local sent, packed = tonumber(ARGV[1]), ARGV[2]

--- include store

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
-- Unpacks straight into a call to Redis: a table in between would double the cost.
return store_in_groups(KEYS, 1, nil, sent, function() return cmsgpack.unpack(packed) end)
