-- Stores Priority and FixedTime messages of one slot with the scores given; of equal contents the
-- last score wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: 1 how many messages, 2 score (0: now), content, score, content, ... as strings of MessagePack
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: stores
local sent, packed = tonumber(ARGV[1]), ARGV[2]

--- include at_once
--- include store
--- include time

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
-- Unpacked straight into a call to Redis: a table between would cost as much again. Only where a
-- score may be '0' (or these bytes are part of a content) there is one.
local PACKED_AT_ONCE = '\161' .. AT_ONCE
local values = function() return cmsgpack.unpack(packed) end
if string.find(packed, PACKED_AT_ONCE, 1, true) then
  local pairs_ = dated({cmsgpack.unpack(packed)}, now_ms())
  values = function() return unpack(pairs_) end
end
return store_in_groups(KEYS, 1, nil, sent, values)
