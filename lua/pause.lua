-- Marks one slot of a consumer group as paused, or removes the mark. A paused slot makes no new claim
-- (claim.lua). Existing claims are read, committed and rolled back as before.
-- KEYS: 1 consumers, 2 store
-- ARGV: 1 paused 0/1
-- Returns 1.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local consumers, store, paused = KEYS[1], KEYS[2], ARGV[1] == '1'

--- include full_server
--- include headers
--- include types
--- include wake

local wrong = wrong_type(consumers, 'hash')
if wrong then return wrong end
write_though_full(consumers)
if paused then
  redis.call('HSET', consumers, PAUSED, 1)
else
  redis.call('HDEL', consumers, PAUSED)
  wake(store, 0)
end
return 1
