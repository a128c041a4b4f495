-- Stores Priority and FixedTime messages of one slot with the scores given; of equal contents the
-- last score wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: 1 how many messages, 2 score, content, score, content, ... as strings of MessagePack
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
local sent, packed = tonumber(ARGV[1]), ARGV[2]

--- include types
--- include store

-- Unpacked straight into a call to Redis: a table between would cost as much again.
return wrong_group_type(1) or store_in_groups(1, nil, sent, function() return cmsgpack.unpack(packed) end)
