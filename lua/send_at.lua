-- Stores FixedTime messages of one slot, each due at its time or after its delay. Of equal contents,
-- the last wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats, 4 bodies; then, with unique_for, the recent messages
-- ARGV: 1 number of messages, 2 whether a message that waits keeps its body 0/1, 3 an upper bound of the bytes of
--       their contents, 4 the topic's limits (limits.lua), 5 a lower bound of their scores, 6 score, content, score,
--       content, ..., 7 if they have bodies: content, body, content, body, ..., an empty body for none (both lists
--       as MessagePack). A score above 0 is a due time in ms since 1970; a delay of d ms, which starts now, is -d
-- Returns {new, merged, repeated}, counted in the first group; or a refusal (limits.lua).
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 3900 messages, a MiB of contents and a MiB of bodies, or one message.
-- Effect: stores
local sent, keep_first = tonumber(ARGV[1]), ARGV[2] == '1'
local largest, limits, lowest = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local packed, bodies = ARGV[6], ARGV[7]

--- include dated
--- include groups
--- include store
--- include time

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
-- Unpacks straight into a call to Redis: a table in between would double the cost.
local now, values = now_ms(), function() return cmsgpack.unpack(packed) end
local first = lowest
if lowest <= HIGHEST_DELAY then
  local pairs_
  pairs_, lowest, first = dated({cmsgpack.unpack(packed)}, now)
  values = function() return unpack(pairs_) end
end
return store_in_groups(KEYS, 1, {sent = sent, values = values,
  bodies = bodies and {cmsgpack.unpack(bodies)}, keep_first = keep_first, largest = largest,
  lowest = lowest, first = first, now = now, limits = limits})
