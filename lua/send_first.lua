-- Stores RangeMerge messages of one slot, each due its timeRange from now. Of equal contents, the
-- first due time stays.
-- KEYS: for each group 1 store, 2 retry, 3 stats, 4 bodies; then, with unique_for, the recent messages
-- ARGV: 1 number of messages, 2 whether a message that waits keeps its body 0/1, 3 an upper bound of the bytes of
--       their contents, 4 the topic's limits (limits.lua), 5 timeRange in ms, content, timeRange, content, ..., 6 if they have bodies: content,
--       body, content, body, ..., an empty body for none (both lists as MessagePack)
-- Returns {new, merged, repeated}, counted in the first group; or a refusal (limits.lua).
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 3900 messages, a MiB of contents and a MiB of bodies, or one message.
-- Effect: stores
local sent, keep_first, largest = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local limits, packed, bodies = ARGV[4], ARGV[5], ARGV[6]

--- include due_after
--- include groups
--- include store
--- include time

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
local now = now_ms()
local delayed, first = due_after({cmsgpack.unpack(packed)}, now)
return store_in_groups(KEYS, 1, {sent = sent, values = function() return unpack(delayed) end,
  bodies = bodies and {cmsgpack.unpack(bodies)}, keep_first = keep_first, largest = largest,
  condition = 'NX', first = first, now = now, limits = limits})
