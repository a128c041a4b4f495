-- Moves messages of one slot from a sealed stage into the store of every group, as the send scripts
-- would store them now. Each call moves the next ones. The number of moved messages stays beside
-- the stage's name, as evidence: a repeated call is harmless, and a published stage differs from
-- one that Redis has lost.
-- KEYS: 1 stage, 2 stages, for each group 3 store, 4 retry, 5 stats, 6 bodies
-- ARGV: 1 the stage's name, 2 the send script that would store them, 3 the number of messages that
--   its task put there, 4 whether a message that waits keeps its body 0/1
-- Returns {1 if another call would do more, else 0; new; merged}, counted in the first group.
-- Errors: RMQ_STAGELOST, RMQ_WRONGTYPE
-- Bound: 2600 messages.
-- Effect: moves
local stage, stages = KEYS[1], KEYS[2]
local name, send_script, total, keep_first = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local GROUPS_FROM, MESSAGES_AT_MOST = 3, 2600

--- include bodies
--- include dated
--- include due_after
--- include stages
--- include store
--- include time
--- include types

-- Returns pairs of score and content, and pairs of content and body, or nil.
local function split(staged, values)
  if values == 2 then return staged, nil end
  local pairs_, bodies = {}, {}
  for i = 1, #staged, values do
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = staged[i], staged[i + 1]
    bodies[#bodies + 1], bodies[#bodies + 2] = staged[i + 1], staged[i + 2]
  end
  return pairs_, bodies
end

local wrong = wrong_type(stage, 'list', stages, 'hash') or wrong_group_type(KEYS, GROUPS_FROM)
if wrong then return wrong end
local begun, moved, values = read_stage(stages, name)
local held = redis.call('LLEN', stage) / values
if not begun or moved + held ~= total then
  return lost_stage(stage, held, moved, total)
end
if held == 0 then return {0, 0, 0} end
-- LPOP comes first because it frees memory: sealed messages must pass even on a full server.
local pairs_, bodies = split(redis.call('LPOP', stage, MESSAGES_AT_MOST * values), values)
local taken = #pairs_ / 2
write_stage(stages, name, begun, moved + taken, values)
local now, condition, lowest, first = now_ms(), nil, nil, nil
if send_script == 'send_first' then
  condition = 'NX'
  pairs_, first = due_after(pairs_, now)
elseif send_script == 'send_at' then
  pairs_, lowest, first = dated(pairs_, now)
end
if bodies and send_script == 'send_last' then bodies = due_now(bodies, now) end
local counts = store_in_groups(KEYS, GROUPS_FROM, {sent = taken, condition = condition,
  values = function() return unpack(pairs_) end, bodies = bodies,
  keep_first = keep_first, lowest = lowest, first = first, now = now})
return {taken < held and 1 or 0, counts[1], counts[2]}
