-- Stores FixedTime messages of one slot, each due at its time. Of equal contents, the last wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: 1 number of messages, 2 a lower bound of their due times, 3 due time in ms (0: now),
--       content, due time, content, ... as strings of MessagePack
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: stores
local sent, lowest, packed = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

--- include at_once
--- include store
--- include time

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
-- Unpacks straight into a call to Redis: a table in between would double the cost.
local now, values = now_ms(), function() return cmsgpack.unpack(packed) end
if lowest == AT_ONCE then
  local pairs_
  pairs_, lowest = dated({cmsgpack.unpack(packed)}, now)
  values = function() return unpack(pairs_) end
end
return store_in_groups(KEYS, 1, nil, sent, values, lowest, now)
