-- How messages leave the PrepareQueue without being committed. The scripts that include this file
-- declare, above it, the keys store, prepare, retry, dead, claims, first and stats, the topic's
-- max_retries and backoff (a list of ms, empty for none), and include time and records.
local UNPACKABLE = 2048 -- messages in one variadic call: two values each, of the 7999 unpack takes

local function zadd(key, condition, pairs_)
  local added = 0
  for i = 1, #pairs_, 2 * UNPACKABLE do
    local last = math.min(i + 2 * UNPACKABLE - 1, #pairs_)
    added = added + redis.call('ZADD', key, condition, unpack(pairs_, i, last))
  end
  return added
end

local function count(counter, by)
  if by ~= 0 then redis.call('HINCRBY', stats, counter, by) end
end

-- The wait before the delivery that follows one with `left` retries left, in ms.
local function backoff_ms(left)
  if #backoff == 0 then return 0 end
  return backoff[math.min(#backoff, math.max(1, max_retries - left + 1))]
end

-- The retry queue keeps whole seconds beside the retries left, so a wait ends at the next full one.
local function retry_score(due_ms, left) return math.ceil(due_ms / 1000) * 1000 + left end

-- Adds `waiting` (pairs of score and content) to the retry queue, but for contents that the store
-- holds: they were sent again meanwhile, and that copy wins. Returns how many gave way.
local function to_retry(waiting)
  local kept, dropped = {}, 0
  for i = 1, #waiting, 2 * UNPACKABLE do
    local contents = {}
    for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #waiting), 2 do
      contents[#contents + 1] = waiting[k]
    end
    for k, stored in ipairs(redis.call('ZMSCORE', store, unpack(contents))) do
      if stored then
        dropped = dropped + 1
      else
        kept[#kept + 1] = waiting[i + 2 * k - 2]
        kept[#kept + 1] = contents[k]
      end
    end
  end
  zadd(retry, 'NX', kept)
  return dropped
end

-- Rolls back messages that were taken out of the PrepareQueue already: {content, left} each. They go
-- to the store, to the retry queue where they must wait, to the DeadQueue when no retry is left.
local function give_back(messages, now, wait_of)
  local again, waiting, buried = {}, {}, {}
  for _, message in ipairs(messages) do
    local left = message[2]
    local wait = left > 0 and wait_of(left) or 0
    local target = left == 0 and buried or wait > 0 and waiting or again
    target[#target + 1] = left == 0 and now or wait > 0 and retry_score(now + wait, left) or left
    target[#target + 1] = message[1]
  end
  local merged = #again / 2 - zadd(store, 'NX', again) + to_retry(waiting)
  zadd(dead, 'GT', buried)
  count('rolledBack', #messages)
  count('dead', #buried / 2)
  count('merged', merged)
end

-- The score that a message never delivered (run 0) goes back with, so that nothing is charged: the
-- one it came with, unless replays of deliveries before this one took retries from it.
local function unread_score(first_score, left)
  local at_first = tonumber(first_score) > 16 and max_retries or first_score - 1
  return left < at_first and left + 1 or first_score
end

-- Rolls back a whole claim and forgets its record. Returns how many messages it held.
local function give_back_claim(record, now)
  local base, past = claim_range(record.stamp)
  local items = redis.call('ZRANGEBYSCORE', prepare, base, past, 'WITHSCORES')
  local scores = record.run == 0 and first_scores(first, record)
  redis.call('ZREMRANGEBYSCORE', prepare, base, past)
  redis.call('HDEL', claims, record.field)
  redis.call('HDEL', first, record.field)
  local messages, unread = {}, {}
  for i = 1, #items, 2 do
    local score = tonumber(items[i + 1])
    local left = math.floor(score) - record.stamp * 1000
    if scores then
      local first_score = scores[(score - math.floor(score)) * 2048 + 1]
      unread[#unread + 1] = unread_score(first_score, left)
      unread[#unread + 1] = items[i]
    else
      messages[#messages + 1] = {items[i], left}
    end
  end
  count('merged', #unread / 2 - zadd(store, 'NX', unread))
  count('rolledBack', #unread / 2)
  give_back(messages, now, backoff_ms)
  return #items / 2
end

-- Gives back the claims whose lease has run out, but for those that `spared` names, up to `most`
-- messages. Empty records hold nothing back and stay. Returns how many messages that were.
local function reap(records, now, most, spared)
  local moved = 0
  for _, record in ipairs(records) do
    if record.deadline <= now and not spared(record) and moved + record.count <= most
      and held_messages(prepare, record) > 0 then
      moved = moved + give_back_claim(record, now)
      record.stamp = 0
    end
  end
  return moved
end
