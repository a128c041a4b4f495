-- Reads a page of one queue of one slot, in the order of its scores, without taking messages.
-- KEYS: 1 queue, or the messages of a claim, 2 deaths for the dead queue
-- ARGV: 1 lowest and 2 highest score, as ZCOUNT takes them, 3 score and 4 content of the entry
--       after which to continue, both '' at the beginning, 5 entries at most, 6 bytes after which
--       to stop
-- Returns {1 if there may be more, else 0; content, score, ...}, in the dead queue content, score, death,
--   ... If the entry has left the queue, all entries of its score come again.
-- Errors: RMQ_WRONGTYPE
-- Bound: ARGV 5 entries; ARGV 6 bytes and those of 8 more contents, which are read at once.
-- Effect: reads
local queue, deaths = KEYS[1], KEYS[2]
local lowest, highest, after_score, after_content = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local most, enough_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local READ_AT_ONCE = 8 -- the size of a content is known only after reading it

--- include types

local wrong = wrong_type(queue, 'zset') or deaths and wrong_type(deaths, 'hash')
if wrong then return wrong end

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
local reply, read, bytes = {1}, 0, 0

local function add(text)
  reply[#reply + 1] = text
  bytes = bytes + #text
end

local function deaths_of(items)
  local contents = {}
  for i = 1, #items, 2 do contents[#contents + 1] = items[i] end
  return redis.call('HMGET', deaths, unpack(contents))
end

while rank < past and read < most and bytes < enough_bytes do
  local last = math.min(past, rank + math.min(READ_AT_ONCE, read + 1), rank + most - read) - 1
  local items = redis.call('ZRANGE', queue, rank, last, 'WITHSCORES')
  local found = deaths and deaths_of(items)
  for i = 1, #items, 2 do
    add(items[i])
    add(items[i + 1])
    if found then add(found[(i + 1) / 2] or '') end
  end
  rank, read = last + 1, read + last + 1 - rank
end
reply[1] = rank < past and 1 or 0
return reply
