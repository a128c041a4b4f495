-- Deletes dead messages of one slot for good that died longer ago than the topic keeps them.
-- KEYS: 1 dead, 2 deaths, 3 stats
-- ARGV: 1 how long dead messages are kept, in ms
-- Returns {1 if another call may delete more, else 0; number of deleted messages}.
-- Errors: RMQ_WRONGTYPE
-- Bound: 2048 messages; contents of 8 MiB, and those of 8 more messages, which are read at once.
-- Effect: moves
local dead, deaths, stats, kept_ms = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local MESSAGES_AT_MOST, ENOUGH_BYTES = 2048, 8 * 1024 * 1024
local READ_AT_ONCE = 8 -- the size of a content is known only after reading it

--- include counters
--- include numbers
--- include time
--- include types

local wrong = wrong_type(dead, 'zset', deaths, 'hash', stats, 'hash')
if wrong then return wrong end
local until_ms = '(' .. text_of(now_ms() - kept_ms)
local deleted, bytes, more = 0, 0, 1
while more == 1 and deleted < MESSAGES_AT_MOST and bytes < ENOUGH_BYTES do
  local ended = redis.call('ZRANGEBYSCORE', dead, '-inf', until_ms, 'LIMIT', 0, READ_AT_ONCE)
  if #ended > 0 then
    redis.call('ZREM', dead, unpack(ended))
    redis.call('HDEL', deaths, unpack(ended))
  end
  for _, content in ipairs(ended) do bytes = bytes + #content end
  deleted = deleted + #ended
  if #ended < READ_AT_ONCE then more = 0 end
end
count(stats, 'forgotten', deleted)
return {more, deleted}
