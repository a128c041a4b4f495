-- Stores RangeMerge messages of one slot, each due its timeRange from now. Of equal contents, the
-- first due time stays.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: 1 number of messages, 2 timeRange in ms, content, timeRange, content, ... as strings of
--       MessagePack
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: stores
local sent, packed = tonumber(ARGV[1]), ARGV[2]

--- include due_after
--- include store
--- include time

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
local delayed = due_after({cmsgpack.unpack(packed)}, now_ms())
return store_in_groups(KEYS, 1, 'NX', sent, function() return unpack(delayed) end)
