-- How long a store may have had due messages, where scores are due times. A time that has passed when
-- its message is stored says nothing about how long the message has waited. So the field dueSince keeps
-- a time after which everything became due that is due in the store. Retries do not count.
-- Defines: due_since, since_when, note_due_since
--- include numbers
local DUE_SINCE = 'dueSince'

-- The earliest due time in ms of a message that is due, or nil.
local function first_due(store, now)
  return tonumber(
    redis.call('ZRANGEBYSCORE', store, '(16', text_of(now), 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- The time in ms since when all of them became due, the first of which has this due time.
local function bounded(stats, first) return math.max(first, redis.call('HGET', stats, DUE_SINCE) or 0) end

-- The time in ms since when the store has had due messages at most, or nil where none is due.
local function due_since(store, stats, now)
  local first = first_due(store, now)
  return first and math.min(now, bounded(stats, first)) -- a clock may have been set back
end

-- What to note once messages are stored of which some may be due before now, but none before
-- `lowest`; or nil. Comes before they are stored.
local function since_when(store, stats, lowest, now)
  local first = first_due(store, now)
  if not first then return now end
  if lowest < first then return bounded(stats, first) end
end

local function note_due_since(stats, since)
  if since then redis.call('HSET', stats, DUE_SINCE, text_of(since)) end
end
