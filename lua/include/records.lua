-- The record of a claim is the text "version made run deadline sealed held moved maxRetries charged
-- replayed arrivals expired" in the hash claims, under the claim's name consumer:seq:ordinal. All times are in
-- ms.
--   made: when the claim was made. run: the run that has it; 0 if it was handed back undelivered
--   (unread.lua). deadline: the end of its lease. sealed: the messages that it took, or of what is left of a
--   claim (give_back.lua) those that it had at the beginning; held: those that it still has. moved: the retries that making it moved into the store. maxRetries: the topic's,
--   when it was made. charged: the deliveries to newer runs since then. replayed: the run that listed
--   it to replay its batch, 0 before. arrivals: those of the slot (claim.lua) when it was made.
--   expired: the messages that making it found expired.
-- Defines: HIGHEST_RETRY, LONG_PAST, LOST, ALONE, CLAIMED_WITH, record_name, write_record, read_record,
--   read_records, suspect_score, score_again, level_of, above_level, retries_left, keys_by_name
local RECORD_VERSION = 1
local HIGHEST_RETRY = 16 -- in a store, a score up to this is a number of retries left
-- Deadlines that are past, whatever the clock does: of a claim that its consumer gave up, and of one whose
-- holder has ended.
local LONG_PAST, LOST = 1, 2
-- A message of a claim that was lost is suspect: it may have ended its holder. In the store, its score is
-- -(32 * level + deliveries left). It is claimed only with others of its level, and with so many in all. At the last
-- level, its holder has nothing else in progress, so that only then the message is to blame if that claim is lost, too.
local LEVEL, CLAIMED_WITH, ALONE = 32, {256, 16, 1, 1}, 4

local function record_name(consumer, seq, ordinal)
  return consumer .. ':' .. seq .. ':' .. ordinal
end

local function write_record(claims, record)
  redis.call('HSET', claims, record.name, string.format('%d %.0f %.0f %.0f %d %d %d %d %d %.0f %.0f %d',
    RECORD_VERSION, record.made, record.run, record.deadline, record.sealed, record.held,
    record.moved, record.max_retries, record.charged, record.replayed, record.arrivals,
    record.expired))
end

-- Returns a record from its text; or nil and an error reply.
local function parse_record(claims, name, text)
  local made, run, deadline, sealed, held, moved, max_retries, charged, replayed, arrived,
    expired = string.match(text, '^1' .. string.rep(' (%d+)', 11) .. '$')
  local consumer, seq, ordinal = string.match(name, '^(.+):(%d+):(%d+)$')
  if not made or not consumer then
    return nil, redis.error_reply('RMQ_VERSION the record ' .. name .. ' in ' .. claims
      .. ' was written by another version of rmq-spark: ' .. text
      .. '. Let that version finish it: pause the topic, and wait until rmq show has 0 in prepare')
  end
  return {name = name, consumer = consumer, seq = tonumber(seq), ordinal = tonumber(ordinal),
    made = tonumber(made), run = tonumber(run), deadline = tonumber(deadline),
    sealed = tonumber(sealed), held = tonumber(held), moved = tonumber(moved),
    max_retries = tonumber(max_retries), charged = tonumber(charged), replayed = tonumber(replayed),
    arrivals = tonumber(arrived), expired = tonumber(expired)}
end

-- Returns the record of one claim, or nil; and an error reply, or nil.
local function read_record(claims, name)
  local text = redis.call('HGET', claims, name)
  if not text then return nil end
  return parse_record(claims, name, text)
end

-- Returns all records of a slot, as a list and by name; or nil and an error reply.
local function read_records(claims)
  local flat, list, by_name = redis.call('HGETALL', claims), {}, {}
  for i = 1, #flat, 2 do
    local record, wrong = parse_record(claims, flat[i], flat[i + 1])
    if not record then return nil, wrong end
    list[#list + 1] = record
    by_name[record.name] = record
  end
  return list, by_name
end

local function suspect_score(level, deliveries) return -(level * LEVEL + deliveries) end

-- Returns the score of a message that is redelivered at no charge. Level 0 is no suspect, but only a negative score can
-- have more deliveries left than there are retries.
local function score_again(level, deliveries)
  return (level > 0 or deliveries > HIGHEST_RETRY) and suspect_score(level, deliveries) or deliveries
end

-- Returns the level of a message by its score in the store; less than 1 if it is not suspect.
local function level_of(score) return math.floor(-score / LEVEL) end

-- Returns the end of the scores, from the lowest one on, of suspects of this level and higher ones.
local function above_level(level) return -level * LEVEL end

-- Returns the retries left of a message that a claim holds, and those that it had when the claim was
-- made. score: the one that it had in the store.
local function retries_left(record, score)
  local deliveries = score < 0 and -score % LEVEL or score
  local at_first = score <= HIGHEST_RETRY and deliveries - 1 or record.max_retries
  return math.max(0, at_first - record.charged), at_first
end

-- A script may use only keys that its caller names. Callers name the keys of claims from keys[key] on,
-- and the claims themselves from args[arg] to the last, in the same order. Returns the keys by claim.
local function keys_by_name(keys, key, args, arg)
  local by_name = {}
  for i = 0, #args - arg do by_name[args[arg + i]] = keys[key + i] end
  return by_name
end
