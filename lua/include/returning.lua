-- Returns messages of a claim to the queues of their slot (slot.lua) without committing them. terms: the
-- retries and waits of the topic (retry_queue.lua). bodies: those of the claim by content, or nil.
-- Defines: return_messages, return_uncharged, return_lost, bury_messages
--- include bodies
--- include counters
--- include dead
--- include records
--- include retry_queue
--- include wake
--- include zadd

-- Puts messages (score, content, ...) into the store or the retry queue, except those that are in the store:
-- they were sent again in the meantime, and that copy wins. A copy that was requeued in the meantime is
-- older, and takes over the body. Returns the number of messages in the store.
local function put_into(target, slot, bodies, scored)
  if target == slot.store and not bodies then return #scored / 2 - zadd(target, 'NX', scored) end
  local kept, kept_bodies, merged = {}, {}, 0
  for i = 1, #scored, 2 * UNPACKABLE do
    local contents = {}
    for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #scored), 2 do
      contents[#contents + 1] = scored[k]
    end
    for k, stored in ipairs(redis.call('ZMSCORE', slot.store, unpack(contents))) do
      local content = contents[k]
      if stored then
        merged = merged + 1
      else
        kept[#kept + 1], kept[#kept + 2] = scored[i + 2 * k - 2], content
      end
      local body = bodies and bodies[content] or ''
      if body ~= '' and (not stored or is_marked(redis.call('HGET', slot.bodies, content))) then
        kept_bodies[#kept_bodies + 1], kept_bodies[#kept_bodies + 2] = content, body
      end
    end
  end
  set_bodies(slot.bodies, kept_bodies)
  zadd(target, 'NX', kept)
  return merged
end

-- Rolls back messages (content, score, content, score, ...) that the claim no longer holds. They go
-- to the store, to the retry queue if they must wait, or to the dead queue if no retry is left.
-- reason_of: returns why, by content; '' for no reason. delay_ms: the wait, or nil for the topic's backoff.
-- level: at which they are suspect from now on, or nil.
local function return_messages(slot, terms, record, items, bodies, now, reason_of, delay_ms, level)
  local again, waiting, buried, soonest = {}, {}, {}, math.huge
  for i = 1, #items, 2 do
    local left = retries_left(record, tonumber(items[i + 1]))
    local wait = left > 0 and (delay_ms or backoff_ms(terms, left, items[i])) or 0
    local target = left == 0 and buried or wait > 0 and waiting or again
    if left > 0 then soonest = math.min(soonest, wait) end
    local score = level and suspect_score(level, left) or left
    target[#target + 1] = left == 0 and now or wait > 0 and retry_score(now + wait, score) or score
    target[#target + 1] = items[i]
  end
  local merged = put_into(slot.store, slot, bodies, again) + put_into(slot.retry, slot, bodies, waiting)
  bury(slot, record.consumer, reason_of, bodies, buried)
  count(slot.stats, 'rolledBack', #items / 2)
  count(slot.stats, 'merged', merged)
  if soonest < math.huge then wake(slot.store, soonest) end
end

-- Returns messages (content, score, content, score, ...) of a claim to the store, so that the last delivery costs
-- nothing: with the scores that they had, or with one retry more than replays have left them. level: at which they
-- are suspect from now on, 0 for not; nil to leave that as it was. delay_ms: a wait from now on, in the retry queue; nil or 0 for
-- none. That queue keeps no due time or priority, so after a wait the score of a first delivery is its deliveries left.
local function return_uncharged(slot, record, items, bodies, level, now, delay_ms)
  local scored, wait = {}, delay_ms or 0
  for i = 1, #items, 2 do
    local score = tonumber(items[i + 1])
    local left, at_first = retries_left(record, score)
    local before = math.max(0, level_of(score))
    local again = score_again(level or before, left + 1)
    local is_as_it_was = left == at_first and (level or before) == before
    scored[i] = wait > 0 and retry_score(now + wait, again) or is_as_it_was and items[i + 1] or again
    scored[i + 1] = items[i]
  end
  count(slot.stats, 'merged', put_into(wait > 0 and slot.retry or slot.store, slot, bodies, scored))
  count(slot.stats, 'rolledBack', #items / 2)
  wake(slot.store, wait)
end

-- Moves messages (content, score, content, score, ...) that the claim no longer holds to the dead queue, whatever
-- retries they have left.
local function bury_messages(slot, record, items, bodies, now, reason_of)
  local buried = {}
  for i = 1, #items, 2 do buried[i], buried[i + 1] = now, items[i] end
  count(slot.stats, 'rolledBack', #buried / 2)
  bury(slot, record.consumer, reason_of, bodies, buried)
end

-- Returns messages (content, score, content, score, ...) of a claim whose holder has lost it. Any of them may have
-- ended the holder, so they are suspect, and are redelivered with fewer others. Only one that was delivered alone is charged.
local function return_lost(slot, terms, record, items, bodies, now, reason_of)
  local messages, level = record.sealed, level_of(tonumber(items[2] or 0))
  if level == ALONE then
    return return_messages(slot, terms, record, items, bodies, now, reason_of, nil, ALONE)
  end
  local by_size = messages > CLAIMED_WITH[1] and 1 or messages > CLAIMED_WITH[2] and 2 or 3
  return_uncharged(slot, record, items, bodies, math.max(by_size, level + 1))
end
