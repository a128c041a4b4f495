-- Returns messages of a claim to the queues of their slot (slot.lua) without committing them. terms: the
-- retries and waits of the topic (retry_queue.lua). bodies: those of the claim by content, or nil.
-- Defines: return_messages, return_undelivered
--- include bodies
--- include counters
--- include dead
--- include records
--- include retry_queue
--- include zadd

-- Keeps the bodies of messages (score, content, ...) that go back to the store. Call it before they do:
-- one that was sent again in the meantime has a newer body, or none.
local function keep_bodies(slot, bodies, scored)
  if not bodies then return end
  local kept = {}
  for i = 1, #scored, 2 * UNPACKABLE do
    local contents = {}
    for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #scored), 2 do
      contents[#contents + 1] = scored[k]
    end
    for k, stored in ipairs(redis.call('ZMSCORE', slot.store, unpack(contents))) do
      local body = bodies[contents[k]] or ''
      if not stored and body ~= '' then
        kept[#kept + 1], kept[#kept + 2] = contents[k], body
      end
    end
  end
  set_bodies(slot.bodies, kept)
end

-- Adds `waiting` (pairs of score and content) to the retry queue, except contents in the store:
-- they were sent again in the meantime, and that copy wins. Returns the number of these.
local function to_retry(slot, bodies, waiting)
  keep_bodies(slot, bodies, waiting)
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
local function return_messages(slot, terms, record, items, bodies, now, reason_of, delay_ms)
  local again, waiting, buried = {}, {}, {}
  for i = 1, #items, 2 do
    local left = retries_left(record, tonumber(items[i + 1]))
    local wait = left > 0 and (delay_ms or backoff_ms(terms, left)) or 0
    local target = left == 0 and buried or wait > 0 and waiting or again
    target[#target + 1] = left == 0 and now or wait > 0 and retry_score(now + wait, left) or left
    target[#target + 1] = items[i]
  end
  keep_bodies(slot, bodies, again)
  local merged = #again / 2 - zadd(slot.store, 'NX', again) + to_retry(slot, bodies, waiting)
  bury(slot, record.consumer, reason_of, bodies, buried)
  count(slot.stats, 'rolledBack', #items / 2)
  count(slot.stats, 'merged', merged)
end

-- Returns messages (content, score, content, score, ...) of a claim that nobody got, so that they are
-- as before: with the scores that they had, or with one retry more than replays have left them.
local function return_undelivered(slot, record, items, bodies)
  local scored = {}
  for i = 1, #items, 2 do
    local left, at_first = retries_left(record, tonumber(items[i + 1]))
    scored[i] = left < at_first and left + 1 or items[i + 1]
    scored[i + 1] = items[i]
  end
  keep_bodies(slot, bodies, scored)
  count(slot.stats, 'merged', #items / 2 - zadd(slot.store, 'NX', scored))
  count(slot.stats, 'rolledBack', #items / 2)
end
