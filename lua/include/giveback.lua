-- Moves messages out of the PrepareQueue of a slot (slot.lua) without committing them. terms: the
-- retries and waits of the topic (retry_queue.lua).
-- Defines: give_back, give_back_claim, reap
--- include counters
--- include records
--- include retry_queue
--- include zadd

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

-- Rolls back messages that are already removed from the PrepareQueue, each as {content, retries
-- left}. They go to the store, to the retry queue if they must wait, or to the dead queue if no
-- retry is left. delay_ms: the wait, or nil for the topic's backoff.
local function give_back(slot, terms, messages, now, delay_ms)
  local again, waiting, buried = {}, {}, {}
  for _, message in ipairs(messages) do
    local left = message[2]
    local wait = left > 0 and (delay_ms or backoff_ms(terms, left)) or 0
    local target = left == 0 and buried or wait > 0 and waiting or again
    target[#target + 1] = left == 0 and now or wait > 0 and retry_score(now + wait, left) or left
    target[#target + 1] = message[1]
  end
  local merged = #again / 2 - zadd(slot.store, 'NX', again) + to_retry(slot, waiting)
  zadd(slot.dead, 'GT', buried)
  count(slot.stats, 'rolledBack', #messages)
  count(slot.stats, 'dead', #buried / 2)
  count(slot.stats, 'merged', merged)
end

-- Returns the store score for a message that was never delivered (run 0), so that it costs no
-- retry. This is the score that it had, unless replays of earlier deliveries have taken retries
-- from it. Example: a retry with the score 5 is claimed with 4 retries left. If 4 are left, it gets
-- the score 5 again; if 3 are left, because of a replay, it gets the score 4.
local function unread_score(max_retries, first_score, left)
  local at_first = tonumber(first_score) > 16 and max_retries or first_score - 1
  return left < at_first and left + 1 or first_score
end

-- Rolls back a whole claim and deletes its record. Returns the number of messages that it held.
local function give_back_claim(slot, terms, record, now)
  local base, past = claim_range(record.stamp)
  local items = redis.call('ZRANGEBYSCORE', slot.prepare, base, past, 'WITHSCORES')
  local scores = record.run == 0 and first_scores(slot.first, record)
  redis.call('ZREMRANGEBYSCORE', slot.prepare, base, past)
  forget_record(slot.claims, slot.first, record)
  local messages, unread = {}, {}
  for i = 1, #items, 2 do
    local score = tonumber(items[i + 1])
    local left = math.floor(score) - record.stamp * 1000
    if scores then
      local first_score = scores[(score - math.floor(score)) * 2048 + 1]
      unread[#unread + 1] = unread_score(terms.max_retries, first_score, left)
      unread[#unread + 1] = items[i]
    else
      messages[#messages + 1] = {items[i], left}
    end
  end
  count(slot.stats, 'merged', #unread / 2 - zadd(slot.store, 'NX', unread))
  count(slot.stats, 'rolledBack', #unread / 2)
  give_back(slot, terms, messages, now)
  return #items / 2
end

-- Gives back the claims whose lease has expired, up to `most` messages, except those for which
-- `spared` returns true. Records without messages stay: they hold nothing back. Returns the number
-- of messages.
local function reap(slot, terms, records, now, most, spared)
  local moved = 0
  for _, record in ipairs(records) do
    if record.deadline <= now and not spared(record) and moved + record.count <= most
      and held_messages(slot.prepare, record) > 0 then
      moved = moved + give_back_claim(slot, terms, record, now)
      record.stamp = 0
    end
  end
  return moved
end
