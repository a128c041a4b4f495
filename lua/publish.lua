-- Moves messages of one slot from a sealed stage into the store of every group, as the send scripts
-- would store them now. Each call moves the next ones. The number of moved messages stays beside
-- the stage's name, as evidence: a repeated call is harmless, and a published stage differs from
-- one that Redis has lost.
-- KEYS: 1 stage, 2 stages, for each group 3 store, 4 retry, 5 stats
-- ARGV: 1 the stage's name, 2 the send script that would store them, 3 the number of messages that
--   its task put there
-- Returns {1 if another call would do more, else 0; new; merged}, counted in the first group.
-- Errors: RMQ_STAGELOST, RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: moves
local stage, stages = KEYS[1], KEYS[2]
local name, send_script, total = ARGV[1], ARGV[2], tonumber(ARGV[3])
local GROUPS_FROM, MESSAGES_AT_MOST = 3, 3900

--- include dated
--- include due_after
--- include stages
--- include store
--- include time
--- include types

local wrong = wrong_type(stage, 'list', stages, 'hash') or wrong_group_type(KEYS, GROUPS_FROM)
if wrong then return wrong end
local begun, published = read_stage(stages, name)
local moved = published or 0
local held = redis.call('LLEN', stage) / 2
if not begun or moved + held ~= total then
  return lost_stage(stage, held, moved, total)
end
if held == 0 then return {0, 0, 0} end
-- LPOP comes first because it frees memory: sealed messages must pass even on a full server.
local pairs_ = redis.call('LPOP', stage, 2 * MESSAGES_AT_MOST)
local taken = #pairs_ / 2
redis.call('HSET', stages, name, string.format('%s %.0f', begun, moved + taken))
local now, condition, lowest = now_ms(), nil, nil
if send_script == 'send_first' then
  pairs_, condition = due_after(pairs_, now), 'NX'
elseif send_script == 'send_at' then
  pairs_, lowest = dated(pairs_, now)
end
local counts = store_in_groups(KEYS, GROUPS_FROM, condition, taken,
  function() return unpack(pairs_) end, lowest, now)
return {taken < held and 1 or 0, counts[1], counts[2]}
