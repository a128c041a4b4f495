-- Deletes dead messages of one slot for good that died longer ago than the topic keeps them.
-- KEYS: 1 dead, 2 deaths, 3 stats
-- ARGV: 1 how long dead messages are kept, in ms
-- Returns {1 if another call may delete more, else 0; number of deleted messages}.
-- Errors: RMQ_WRONGTYPE
-- Bound: 2048 messages; contents of 8 MiB, and up to 16 messages more if these are larger (bytes.lua).
-- Effect: moves
local dead, deaths, stats, kept_ms = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local MESSAGES_AT_MOST = 2048

--- include bytes
--- include counters
--- include numbers
--- include time
--- include types

local wrong = wrong_type(dead, 'zset', deaths, 'hash', stats, 'hash')
if wrong then return wrong end
local until_ms = '(' .. text_of(now_ms() - kept_ms)
local over = redis.call('ZCOUNT', dead, '-inf', until_ms)
local deleted = in_steps(math.min(over, MESSAGES_AT_MOST), BYTES_A_CLAIM, function(_, how_many)
  local ended, bytes = redis.call('ZRANGE', dead, 0, how_many - 1), 0
  redis.call('ZREMRANGEBYRANK', dead, 0, how_many - 1)
  redis.call('HDEL', deaths, unpack(ended))
  for _, content in ipairs(ended) do bytes = bytes + #content end
  return how_many, bytes
end)
count(stats, 'forgotten', deleted)
return {deleted < over and 1 or 0, deleted}
