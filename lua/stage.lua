-- Appends messages of one slot to a stage, where no consumer sees them. A call whose reply was lost
-- may be repeated: the number of messages before it tells whether it has run.
-- KEYS: 1 stage, 2 stages
-- ARGV: 1 the stage's name, 2 messages in it before this call, 3.. pairs of score and content
-- Returns how many messages it holds.
-- Errors: RMQ_STAGELOST, RMQ_WRONGTYPE
-- Bound: what the caller sends, 7800 values a call to Redis.
local stage, stages = KEYS[1], KEYS[2]
local name, before = ARGV[1], tonumber(ARGV[2])
local VALUES_FROM, VALUES_A_CALL = 3, 7800

--- include time
--- include types

local wrong = wrong_type(stage, 'list', stages, 'hash')
if wrong then return wrong end
local held, after = redis.call('LLEN', stage) / 2, before + (#ARGV - VALUES_FROM + 1) / 2
if held == after then return after end
if held ~= before then
  return redis.error_reply(string.format('RMQ_STAGELOST the stage %s holds %.0f messages where its '
    .. 'task had put %.0f', stage, held, before))
end
for i = VALUES_FROM, #ARGV, VALUES_A_CALL do
  redis.call('RPUSH', stage, unpack(ARGV, i, math.min(i + VALUES_A_CALL - 1, #ARGV)))
end
redis.call('HSETNX', stages, name, string.format('%.0f', now_ms()))
return after
