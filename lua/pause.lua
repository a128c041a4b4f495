-- Lets one slot of a consumer group make no new claim (claim.lua): for a while, which is a hold, or until
-- this is called to end it. Existing claims are read, committed and rolled back as before.
-- KEYS: 1 consumers, 2 store
-- ARGV: 1 for how long in ms ('' without an end; below zero: -1 ends a pause, -2 a hold)
-- Returns 1.
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local consumers, store, for_ms = KEYS[1], KEYS[2], tonumber(ARGV[1])

--- include full_server
--- include headers
--- include numbers
--- include time
--- include types
--- include wake

local wrong = wrong_type(consumers, 'hash')
if wrong then return wrong end
write_though_full(consumers)
local until_ms = until_of(redis.call('HGET', consumers, PAUSED))
if not for_ms then
  redis.call('HSET', consumers, PAUSED, 'inf')
elseif for_ms == -1 and until_ms == math.huge or for_ms == -2 and until_ms < math.huge then
  redis.call('HDEL', consumers, PAUSED)
  wake(store, 0)
elseif for_ms > 0 and until_ms < now_ms() + for_ms then
  redis.call('HSET', consumers, PAUSED, text_of(now_ms() + for_ms))
end
return 1
