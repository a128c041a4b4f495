-- Appends messages of one slot to a stage, where no consumer sees them. A call whose reply was lost
-- can be repeated: the number of messages in the stage shows whether the call has run.
-- KEYS: 1 stage, 2 stages
-- ARGV: 1 the stage's name, 2 number of messages in it before, 3 number of new messages, 4 score,
--       content, score, content, ... as strings of MessagePack
-- Returns the number of messages that the stage now holds.
-- Errors: RMQ_STAGELOST, RMQ_WRONGTYPE
-- Bound: 3900 messages.
-- Effect: stores
local stage, stages = KEYS[1], KEYS[2]
local name, before, sent, packed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

--- include numbers
--- include stages
--- include time
--- include types

local wrong = wrong_type(stage, 'list', stages, 'hash')
if wrong then return wrong end
local held, after = redis.call('LLEN', stage) / 2, before + sent
if held == after then return after end
local _, moved = read_stage(stages, name)
if held ~= before or moved then -- a late call finds its stage published
  return lost_stage(stage, held, moved, before)
end
redis.call('RPUSH', stage, cmsgpack.unpack(packed))
redis.call('HSETNX', stages, name, text_of(now_ms()))
return after
