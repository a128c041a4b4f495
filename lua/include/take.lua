-- Takes messages of a slot (slot.lua) for a new claim. Each step moves a whole range of the store by
-- commands of Redis, without a call for each message.
-- Defines: due_retries, take_due
--- include counters
--- include dead
--- include numbers
--- include records
--- include retry_queue
--- include zadd
local LOOKED_AT_MOST = 16384
-- To look for a message in another claim costs about a fourth of what it costs to take it. So the more
-- other claims there are, the fewer messages a claim takes.
local COMPARED_AT_MOST, PASSED_OVER_AT_MOST, TAKEN_AT_LEAST = 16384, 65536, 64

-- Moves retries whose wait is over into the store. A copy that was sent again wins.
local function due_retries(slot, until_ms)
  local items = redis.call('ZRANGEBYSCORE', slot.retry, '-inf', waits_over(until_ms), 'WITHSCORES',
    'LIMIT', 0, 1000)
  if #items == 0 then return 0 end
  redis.call('ZREMRANGEBYRANK', slot.retry, 0, #items / 2 - 1)
  local again = {}
  for i = 1, #items, 2 do
    again[i], again[i + 1] = items[i + 1] % 1000, items[i]
  end
  count(slot.stats, 'merged', #again / 2 - zadd(slot.store, 'NX', again))
  return #again / 2
end

-- Puts the messages that other claims hold as well from `sealed` back into the store, with the scores
-- that they had. Returns their number.
local function put_back(store, sealed, others)
  local back = 0
  for _, other in ipairs(others) do
    local twins = redis.call('ZINTER', 2, sealed, other)
    for i = 1, #twins, UNPACKABLE do
      local last = math.min(i + UNPACKABLE - 1, #twins)
      local scored = {}
      for k, score in ipairs(redis.call('ZMSCORE', sealed, unpack(twins, i, last))) do
        scored[2 * k - 1], scored[2 * k] = score, twins[i + k - 1]
      end
      redis.call('ZREM', sealed, unpack(twins, i, last))
      redis.call('ZADD', store, 'NX', unpack(scored))
    end
    back = back + #twins
  end
  return back
end

-- Returns how many messages claims have taken: those that were delivered, and those that had expired.
local function turns_taken(stats)
  local turns = 0
  for _, counted in ipairs(redis.call('HMGET', stats, 'claimed', 'expired', 'dead:' .. EXPIRED)) do
    turns = turns + (counted or 0)
  end
  return turns
end

-- Moves up to `limit` due messages of the store into `claim`. part: the key of an empty sorted set.
-- others: the keys of the claims whose messages are passed over. Returns the number of messages.
local function take_due(slot, claim, part, others, until_ms, limit, descending)
  local store, looked_at = slot.store, 0
  local claims = math.max(1, #others)
  limit = math.min(limit, math.max(TAKEN_AT_LEAST, math.floor(COMPARED_AT_MOST / claims)))
  local looked_at_most =
    math.min(LOOKED_AT_MOST, math.max(limit, math.floor(PASSED_OVER_AT_MOST / claims)))

  -- Moves the messages of a range in delivery order. Returns the number of those that stay moved.
  local function move(rank, how_many)
    local last = rank + how_many - 1
    local target = redis.call('EXISTS', claim) == 0 and claim or part
    if descending then
      redis.call('ZRANGESTORE', target, store, rank, last, 'REV')
      redis.call('ZREMRANGEBYRANK', store, -last - 1, -rank - 1)
    else
      redis.call('ZRANGESTORE', target, store, rank, last)
      redis.call('ZREMRANGEBYRANK', store, rank, last)
    end
    local moved = how_many - put_back(store, target, others)
    if target == part and moved > 0 then
      redis.call('ZUNIONSTORE', claim, 2, claim, part)
      redis.call('UNLINK', part)
    end
    return moved
  end

  -- Takes up to `wanted` of the `available` messages from a rank on.
  local function take(rank, available, wanted)
    local past, taken = rank + available, 0
    while taken < wanted and rank < past and looked_at < looked_at_most do
      local how_many = math.min(wanted - taken, past - rank, looked_at_most - looked_at)
      local moved = move(rank, how_many)
      looked_at, taken = looked_at + how_many, taken + moved
      rank, past = rank + how_many - moved, past - moved
    end
    return taken
  end

  local retries = redis.call('ZCOUNT', store, '-inf', HIGHEST_RETRY)
  local firsts = redis.call('ZCOUNT', store, '(' .. HIGHEST_RETRY, descending and '+inf' or text_of(until_ms))
  local lead, last = retries, firsts
  if descending then lead, last = firsts, retries end
  local kept_for_last = math.min(last, math.max(1, math.floor(limit / 8)))
  -- With a limit of 1, retries and first deliveries take turns. The count of messages taken so far
  -- decides, because a slot may see only odd or only even batch numbers.
  if limit == 1 and lead > 0 and turns_taken(slot.stats) % 2 == 0 then
    kept_for_last = 0
  end
  if lead <= limit - kept_for_last then return take(0, lead + last, limit) end
  local taken = take(0, lead, limit - kept_for_last)
  taken = taken + take(lead - taken, last, limit - taken)
  -- If other claims still hold all messages whose turn it is, take the others: without a message
  -- taken, the turn would never change.
  if limit == 1 and taken == 0 then taken = take(0, lead, 1) end
  return taken
end
