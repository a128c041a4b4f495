-- Moves messages of one slot from a sealed stage into the store of every group, as the send scripts
-- would have stored them now. Each call takes the next ones, so a repeated call is harmless.
-- KEYS: 1 stage, 2 stages, for each group 3 store, 4 retry, 5 stats
-- ARGV: 1 the stage's name, 2 rangeMerge 0/1: whether its scores are timeRanges
-- Returns {1 if another call would do more, else 0; new; merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: 3900 messages.
local stage, stages = KEYS[1], KEYS[2]
local name, range_merge = ARGV[1], ARGV[2] == '1'
local GROUPS_FROM, MESSAGES_AT_MOST = 3, 3900

--- include time
--- include types
--- include store
--- include delay

local wrong = wrong_type(stage, 'list', stages, 'hash') or wrong_group_type(GROUPS_FROM)
if wrong then return wrong end
-- Freeing comes first: a full server lets what is sealed through.
local pairs_ = redis.call('LPOP', stage, 2 * MESSAGES_AT_MOST) or {}
local more = redis.call('EXISTS', stage)
if more == 0 then redis.call('HDEL', stages, name) end
if #pairs_ == 0 then return {0, 0, 0} end
local condition = nil
if range_merge then pairs_, condition = due_after(pairs_, now_ms()), 'NX' end
local counts = store_in_groups(GROUPS_FROM, condition, #pairs_ / 2, function() return unpack(pairs_) end)
return {more, counts[1], counts[2]}
