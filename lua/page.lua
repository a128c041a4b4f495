-- Reads a page of one queue of one slot, in the order of its scores, without taking messages.
-- KEYS: 1 queue, 2 claims, 3 first; the last two for the PrepareQueue only
-- ARGV: 1 lowest and 2 highest score, as ZCOUNT takes them, 3 score and 4 content of the entry
--       after which to continue, both '' at the beginning, 5 entries at most, 6 bytes after which
--       to stop
-- Returns {{content, score, ...}, {stamp, consumer, first scores, made ms, ...} of the claims that
--   hold them, 1 if there may be more, else 0}. If the entry has left the queue, all entries of its
--   score come again.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: ARGV 5 entries; ARGV 6 bytes and those of 8 more contents, which are read at once.
-- Effect: reads
local queue, claims, first = KEYS[1], KEYS[2], KEYS[3]
local lowest, highest, after_score, after_content = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local most, enough_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local READ_AT_ONCE = 8 -- the size of a content is known only after reading it

--- include records
--- include types

local wrong = wrong_type(queue, 'zset')
  or claims and wrong_type(claims, 'hash', first, 'hash')
if wrong then return wrong end
local records, version = {}, nil
if claims then records, version = read_records(claims) end
if not records then return version end

local function below(score) return redis.call('ZCOUNT', queue, '-inf', '(' .. score) end

local function first_rank()
  if after_score == '' then
    return redis.call('ZCARD', queue) - redis.call('ZCOUNT', queue, lowest, '+inf')
  end
  if tonumber(redis.call('ZMSCORE', queue, after_content)[1]) == tonumber(after_score) then
    return redis.call('ZRANK', queue, after_content) + 1
  end
  return below(after_score)
end

local rank, past = first_rank(), redis.call('ZCOUNT', queue, '-inf', highest)
local by_stamp, entries, holders, bytes = {}, {}, {}, 0
for _, record in ipairs(records) do by_stamp[record.stamp] = record end

-- Adds the claim of a stamp to holders, only once: its first scores are a text of up to 28 KiB.
local function note_holder(stamp)
  local record = by_stamp[stamp]
  if not record then return end
  by_stamp[stamp] = nil
  local scores = redis.call('HGET', first, record.field) or ''
  holders[#holders + 1] = stamp
  holders[#holders + 1] = record.consumer
  holders[#holders + 1] = scores
  holders[#holders + 1] = record.made
  bytes = bytes + #scores
end

while rank < past and #entries / 2 < most and bytes < enough_bytes do
  local read = #entries / 2
  local last = math.min(past, rank + math.min(READ_AT_ONCE, read + 1), rank + most - read) - 1
  for i, text in ipairs(redis.call('ZRANGE', queue, rank, last, 'WITHSCORES')) do
    entries[#entries + 1] = text
    bytes = bytes + #text
    if claims and i % 2 == 0 then note_holder(math.floor(text / 1000)) end
  end
  rank = last + 1
end
return {entries, holders, rank < past and 1 or 0}
