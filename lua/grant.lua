-- Grants permits of a consumer group to claim messages, as the rate limit of its topic allows. A bucket
-- holds up to `burst` permits and gains one each interval. The key says when the bucket is full again, and
-- ends then; so a bucket that Redis forgets is full.
-- KEYS: 1 rate
-- ARGV: 1 permits wanted; below 0, so many come back unused, 2 the interval in ms, 3 burst, 4 whether to
--       take them 0/1, 5 permits that are worth a claim: fewer are granted only to who wants no more
-- Returns {permits granted, ms until there are enough, 0 if permits were granted}
-- Errors: RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: transient
local rate, wanted, interval_ms = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local burst, takes, worthwhile = tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
local FIELD = 'fullAt'

--- include full_server
--- include time
--- include types

local wrong = wrong_type(rate, 'hash')
if wrong then return wrong end

local now = now_ms()
local noted = tonumber(redis.call('HGET', rate, FIELD) or 0)
-- Another limit may have been set since. An empty bucket of this one is full after this time.
local full_at = math.min(math.max(now, noted), now + burst * interval_ms)
local there = math.floor(burst - (full_at - now) / interval_ms + 1e-6)
local enough = math.min(math.max(wanted, 1), worthwhile, burst)
local granted = wanted
if wanted >= 0 then granted = there >= enough and math.min(wanted, there) or 0 end
if takes then full_at = full_at + granted * interval_ms end
if math.max(now, noted) ~= full_at then
  write_though_full(rate)
  redis.call('HSET', rate, FIELD, string.format('%.17g', full_at))
  redis.call('PEXPIRE', rate, math.max(1, math.ceil(full_at - now)))
end
local wait_ms = 0
if granted == 0 then wait_ms = math.max(1, math.ceil(full_at - now - (burst - enough) * interval_ms)) end
return {granted, wait_ms}
