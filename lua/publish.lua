-- Moves messages of one slot from a sealed stage into the store of every group, as the send scripts
-- would store them now. Each call moves the next ones. The number of moved messages stays beside
-- the stage's name, as evidence: a repeated call is harmless, and a published stage differs from
-- one that Redis has lost.
-- KEYS: 1 stage, 2 stages, for each group 3 store, 4 retry, 5 stats, 6 bodies; then, with unique_for, the recent
--   messages
-- ARGV: 1 the stage's name, 2 the send script that would store them, 3 the number of messages that
--   its task put there, 4 whether a message that waits keeps its body 0/1, 5 the topic's limits (limits.lua), but
--   not on what may wait: what is sealed always finds room
-- Returns {1 if another call would do more, else 0; new; merged; repeated}, counted in the first group.
-- Errors: RMQ_STAGELOST, RMQ_WRONGTYPE
-- Bound: 2048 messages; a MiB, and up to 16 messages more if these are larger (bytes.lua).
-- Effect: moves
local stage, stages = KEYS[1], KEYS[2]
local name, send_script, total = ARGV[1], ARGV[2], tonumber(ARGV[3])
local keep_first, limits = ARGV[4] == '1', ARGV[5]
local GROUPS_FROM, MESSAGES_AT_MOST = 3, 2048
local CONTENT = 1 -- the place behind the score among the values of a message

--- include bytes
--- include groups
--- include stages
--- include store_as
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
if held == 0 then return {0, 0, 0, 0} end
-- LPOP comes first because it frees memory: sealed messages must pass even on a full server.
local staged, read, largest = {}, 0, 0
local taken = in_steps(math.min(held, MESSAGES_AT_MOST), BYTES_A_CALL, function(_, how_many)
  local bytes = 0
  for i, value in ipairs(redis.call('LPOP', stage, how_many * values)) do
    staged[read + i] = value
    bytes = bytes + #value
    if (i - 1) % values == CONTENT then largest = math.max(largest, #value) end
  end
  read = read + how_many * values
  return how_many, bytes
end)
local pairs_, bodies = split(staged, values)
write_stage(stages, name, begun, moved + taken, values)
local counts = store_as(send_script, KEYS, GROUPS_FROM, pairs_, bodies, keep_first, largest, limits)
return {taken < held and 1 or 0, unpack(counts)}
