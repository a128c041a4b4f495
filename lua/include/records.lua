-- A record is the text "version stamp run deadlineMs count moved madeMs replayed" under the field
-- consumer:seq:ordinal. replayed: the run that listed it to replay its batch, 0 before. Version 1
-- lacks the last two fields; its stamp is a second close to madeMs.
-- Run 0: the claim was handed back undelivered (unread.lua). Stamp 0: an empty claim.
-- Defines: record_field, write_record, forget_record, read_records, claim_range, held_messages,
--   first_scores
--- include numbers
local RECORD_VERSION = 2

local function record_field(consumer, seq, ordinal)
  return consumer .. ':' .. seq .. ':' .. ordinal
end

local function write_record(claims, record)
  redis.call('HSET', claims, record.field, table.concat({RECORD_VERSION, text_of(record.stamp),
    text_of(record.run), text_of(record.deadline), record.count, record.moved,
    text_of(record.made), text_of(record.replayed)}, ' '))
end

-- Deletes the record of a claim, after its messages have left the PrepareQueue.
local function forget_record(claims, first, record)
  redis.call('HDEL', claims, record.field)
  redis.call('HDEL', first, record.field)
end

-- Returns all records of a slot, as a list and by field; or nil and an error reply.
local function read_records(claims)
  local flat, list, by_field = redis.call('HGETALL', claims), {}, {}
  for i = 1, #flat, 2 do
    local stamp, run, deadline, count, moved, made, replayed =
      string.match(flat[i + 1], '^2 (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not stamp then
      stamp, run, deadline, count, moved =
        string.match(flat[i + 1], '^1 (%d+) (%d+) (%d+) (%d+) (%d+)$')
    end
    local consumer, seq, ordinal = string.match(flat[i], '^(.+):(%d+):(%d+)$')
    if not stamp or not consumer then
      return nil, redis.error_reply('RMQ_VERSION the record ' .. flat[i] .. ' in ' .. claims
        .. ' was written by another version of rmq-spark: ' .. flat[i + 1])
    end
    local record = {field = flat[i], consumer = consumer, seq = tonumber(seq),
      ordinal = tonumber(ordinal), stamp = tonumber(stamp), run = tonumber(run), deadline = tonumber(deadline),
      count = tonumber(count), moved = tonumber(moved), made = tonumber(made) or stamp * 1000,
      replayed = tonumber(replayed) or 0}
    list[#list + 1] = record
    by_field[record.field] = record
  end
  return list, by_field
end

-- Returns the range of a claim's scores in the PrepareQueue: from its base, inclusive, to its
-- end, exclusive.
local function claim_range(stamp) return text_of(stamp * 1000), '(' .. text_of(stamp * 1000 + 1000) end

local function held_messages(prepare, record)
  if record.stamp == 0 then return 0 end
  return redis.call('ZCOUNT', prepare, claim_range(record.stamp))
end

-- Returns the scores that the messages of a claim had in the store, as texts by rank. Redis keeps
-- them as one text, separated by spaces.
local function first_scores(first, record)
  local scores = {}
  for score in string.gmatch(redis.call('HGET', first, record.field), '%S+') do
    scores[#scores + 1] = score
  end
  return scores
end
