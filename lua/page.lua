-- Reads a page of one queue of one slot, in the order of its scores or in reverse, without taking messages.
-- KEYS: 1 queue, or the messages of a claim, 2 what belongs to its messages: deaths for the dead queue, the
--       bodies of the claim, bodies for other queues
-- ARGV: 1 lowest and 2 highest score, as ZCOUNT takes them, 3 score and 4 content of the entry
--       after which to continue, both '' at the beginning, 5 entries at most, 6 bytes after which
--       to stop, 7 whether the queue is a claim 0/1, 8 whether to read all scores, the highest first 0/1
-- Returns {1 if there may be more, else 0; content, score, death or body (or ''), ...}. If the entry has left
--   the queue, all entries of its score are read again.
-- Errors: RMQ_WRONGTYPE
-- Bound: ARGV 5 entries; ARGV 6 bytes, and up to 16 messages more if these are larger (bytes.lua); the bodies of a
--   claim.
-- Effect: reads
local queue, belongings = KEYS[1], KEYS[2]
local lowest, highest, after_score, after_content = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local most, enough_bytes, is_claim, descending = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8] == '1'

--- include bodies
--- include bytes
--- include claim_bodies
--- include types

local wrong = wrong_type(queue, 'zset') or wrong_type(belongings, 'hash')
if wrong then return wrong end

local size = redis.call('ZCARD', queue)

local function first_rank()
  if after_score == '' then
    return size - redis.call('ZCOUNT', queue, lowest, '+inf')
  end
  if tonumber(redis.call('ZMSCORE', queue, after_content)[1]) == tonumber(after_score) then
    local rank = redis.call('ZRANK', queue, after_content)
    return descending and size - rank or rank + 1
  end
  if descending then return redis.call('ZCOUNT', queue, '(' .. after_score, '+inf') end
  return redis.call('ZCOUNT', queue, '-inf', '(' .. after_score)
end

local body_at = is_claim and bodies_by_rank(belongings, size)

-- Returns what belongs to some messages from a rank on.
local function belongings_of(contents, rank)
  if not is_claim then return redis.call('HMGET', belongings, unpack(contents)) end
  local found = {}
  for k = 1, #contents do found[k] = body_at and body_at(rank + k - 1) or '' end
  return found
end

local first, past = first_rank(), redis.call('ZCOUNT', queue, '-inf', highest)
local order = descending and {'REV', 'WITHSCORES'} or {'WITHSCORES'}
local reply = {1}

local function add(text)
  reply[#reply + 1] = text
  return #text
end

local read = in_steps(math.min(most, past - first), enough_bytes, function(done, how_many)
  local rank, contents, bytes = first + done, {}, 0
  local items = redis.call('ZRANGE', queue, rank, rank + how_many - 1, unpack(order))
  for i = 1, #items, 2 do contents[#contents + 1] = items[i] end
  for k, belonging in ipairs(belongings_of(contents, rank)) do
    bytes = bytes + add(contents[k]) + add(items[2 * k]) + add(without_mark(belonging or ''))
  end
  return how_many, bytes
end)
reply[1] = first + read < past and 1 or 0
return reply
