-- Stores FixedTime messages of one slot, each due at its time or after its delay. Of equal contents,
-- the last wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: 1 number of messages, 2 a lower bound of their scores, 3 score, content, score, content, ...
--       as strings of MessagePack. A score above 0 is a due time in ms since 1970; a delay of d ms,
--       which starts now, is -d
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: stores
local sent, lowest, packed = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

--- include dated
--- include store
--- include time

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
-- Unpacks straight into a call to Redis: a table in between would double the cost.
local now, values = now_ms(), function() return cmsgpack.unpack(packed) end
if lowest <= HIGHEST_DELAY then
  local pairs_
  pairs_, lowest = dated({cmsgpack.unpack(packed)}, now)
  values = function() return unpack(pairs_) end
end
return store_in_groups(KEYS, 1, nil, sent, values, lowest, now)
