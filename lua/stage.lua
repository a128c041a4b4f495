-- Appends messages of one slot to a stage, where no consumer sees them. A call whose reply was lost
-- can be repeated: the number of messages in the stage shows whether the call has run.
-- KEYS: 1 stage, 2 stages, with limits on what may wait for each group 3 store, 4 retry, 5 stats, 6 bodies
-- ARGV: 1 the stage's name, 2 number of messages in it before, 3 number of new messages, 4 the topic's limits
--       (limits.lua), 5 score, content, score, content, ..., 6 if they have bodies: content, body, content, body,
--       ..., an empty body for none (both lists as MessagePack). All calls of a stage have bodies, or none.
-- Returns the number of messages that the stage now holds, or a refusal (limits.lua).
-- Errors: RMQ_STAGELOST, RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 3900 messages, a MiB of contents and a MiB of bodies, or one message.
-- Effect: stores
local stage, stages = KEYS[1], KEYS[2]
local name, before, sent, limits = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local packed, bodies = ARGV[5], ARGV[6] and {cmsgpack.unpack(ARGV[6])}

local VALUES_A_CALL = 7800
local GROUPS_FROM = 3

--- include groups
--- include limits
--- include numbers
--- include stages
--- include time
--- include types

local wrong = wrong_type(stage, 'list', stages, 'hash') or wrong_group_type(KEYS, GROUPS_FROM)
if wrong then return wrong end
local begun, moved, values = read_stage(stages, name)
if not begun then values = bodies and 3 or 2 end
local held, after = redis.call('LLEN', stage) / values, before + sent
if held == after then return after end
if held ~= before or moved > 0 then -- a late call finds its stage published
  return lost_stage(stage, held, moved, before)
end
if limits ~= '' then
  local refused = limits_of(limits).refusal(KEYS, GROUPS_FROM, {cmsgpack.unpack(packed)})
  if refused then return refused end
end
if bodies then
  local pairs_, staged = {cmsgpack.unpack(packed)}, {}
  for i = 1, #pairs_, 2 do
    staged[#staged + 1], staged[#staged + 2], staged[#staged + 3] = pairs_[i], pairs_[i + 1], bodies[i + 1]
  end
  for i = 1, #staged, VALUES_A_CALL do
    redis.call('RPUSH', stage, unpack(staged, i, math.min(i + VALUES_A_CALL - 1, #staged)))
  end
else
  redis.call('RPUSH', stage, cmsgpack.unpack(packed))
end
if not begun then write_stage(stages, name, text_of(now_ms()), 0, values) end
return after
