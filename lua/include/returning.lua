-- Returns messages of a claim to the queues of their slot (slot.lua) without committing them. terms: the
-- retries and waits of the topic (retry_queue.lua).
-- Defines: GIVEN_BACK, LEASE_RAN_OUT, return_messages, return_undelivered
--- include counters
--- include records
--- include retry_queue
--- include zadd
local GIVEN_BACK, LEASE_RAN_OUT = 'given back', 'lease ran out'
local COUNTERS_A_SLOT = 32

-- Returns what a reason is counted under: the class of an exception, which stands before its text.
local function class_of(reason)
  if reason == '' then return 'none' end
  if reason == GIVEN_BACK or reason == LEASE_RAN_OUT then return reason end
  local class = string.match(reason, '^([%a_][%w_.]*)$') or string.match(reason, '^([%a_][%w_.]*):')
  return class and string.sub(class, 1, 64) or 'other'
end

-- Puts messages (time, content, time, content, ...) into the dead queue, and notes for each the consumer
-- and the reason. reason_of: returns it, by content.
local function bury(slot, consumer, reason_of, buried)
  if #buried == 0 then return end
  local classes = {}
  for i = 1, #buried, 2 * UNPACKABLE do
    local deaths = {}
    for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #buried), 2 do
      local reason = reason_of(buried[k])
      local class = class_of(reason)
      classes[class] = (classes[class] or 0) + 1
      deaths[#deaths + 1], deaths[#deaths + 2] = buried[k], consumer .. ' ' .. reason
    end
    redis.call('HSET', slot.deaths, unpack(deaths))
  end
  zadd(slot.dead, 'GT', buried)
  count(slot.stats, 'dead', #buried / 2)
  local counters, known = redis.call('HKEYS', slot.stats), {}
  for _, counter in ipairs(counters) do known[counter] = true end
  local there = #counters
  for class, messages in pairs(classes) do
    local counter = 'dead:' .. class
    if not known[counter] then
      if there >= COUNTERS_A_SLOT then counter = 'dead:other' end
      there = there + 1
    end
    count(slot.stats, counter, messages)
  end
end

-- Adds `waiting` (pairs of score and content) to the retry queue, except contents in the store:
-- they were sent again in the meantime, and that copy wins. Returns the number of these.
local function to_retry(slot, waiting)
  local kept, dropped = {}, 0
  for i = 1, #waiting, 2 * UNPACKABLE do
    local contents = {}
    for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #waiting), 2 do
      contents[#contents + 1] = waiting[k]
    end
    for k, stored in ipairs(redis.call('ZMSCORE', slot.store, unpack(contents))) do
      if stored then
        dropped = dropped + 1
      else
        kept[#kept + 1] = waiting[i + 2 * k - 2]
        kept[#kept + 1] = contents[k]
      end
    end
  end
  zadd(slot.retry, 'NX', kept)
  return dropped
end

-- Rolls back messages (content, score, content, score, ...) that the claim no longer holds. They go
-- to the store, to the retry queue if they must wait, or to the dead queue if no retry is left.
-- reason_of: returns why, by content; '' for no reason. delay_ms: the wait, or nil for the topic's backoff.
local function return_messages(slot, terms, record, items, now, reason_of, delay_ms)
  local again, waiting, buried = {}, {}, {}
  for i = 1, #items, 2 do
    local left = retries_left(record, tonumber(items[i + 1]))
    local wait = left > 0 and (delay_ms or backoff_ms(terms, left)) or 0
    local target = left == 0 and buried or wait > 0 and waiting or again
    target[#target + 1] = left == 0 and now or wait > 0 and retry_score(now + wait, left) or left
    target[#target + 1] = items[i]
  end
  local merged = #again / 2 - zadd(slot.store, 'NX', again) + to_retry(slot, waiting)
  bury(slot, record.consumer, reason_of, buried)
  count(slot.stats, 'rolledBack', #items / 2)
  count(slot.stats, 'merged', merged)
end

-- Returns messages (content, score, content, score, ...) of a claim that nobody got, so that they are
-- as before: with the scores that they had, or with one retry more than replays have left them.
local function return_undelivered(slot, record, items)
  local scored = {}
  for i = 1, #items, 2 do
    local left, at_first = retries_left(record, tonumber(items[i + 1]))
    scored[i] = left < at_first and left + 1 or items[i + 1]
    scored[i + 1] = items[i]
  end
  count(slot.stats, 'merged', #items / 2 - zadd(slot.store, 'NX', scored))
  count(slot.stats, 'rolledBack', #items / 2)
end
