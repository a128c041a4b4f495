-- Takes messages of a slot (slot.lua; slot.largest: no content has more bytes) for a new claim. Each step moves a
-- whole range of the store by commands of Redis, without a call for each message.
-- Defines: due_retries, take_due
--- include bytes
--- include counters
--- include dead
--- include numbers
--- include records
--- include retry_queue
--- include zadd
local LOOKED_AT_MOST = 16384
local RETRIES_AT_MOST = 1000
-- To look for a message in another claim costs about a fourth of what it costs to take it. So the more
-- other claims there are, the fewer messages a claim takes.
local COMPARED_AT_MOST, PASSED_OVER_AT_MOST, TAKEN_AT_LEAST = 16384, 65536, 64
local BYTES_AT_LEAST = TAKEN_AT_LEAST * 1024

-- Moves retries whose wait is over into the store. A copy that was sent again wins.
local function due_retries(slot, until_ms)
  local over = redis.call('ZCOUNT', slot.retry, '-inf', waits_over(until_ms))
  if over == 0 then return 0 end
  local again = {}
  local moved = in_steps(math.min(over, RETRIES_AT_MOST), BYTES_A_CALL, function(done, how_many)
    local items, bytes = redis.call('ZRANGE', slot.retry, done, done + how_many - 1, 'WITHSCORES'), 0
    for i = 1, #items, 2 do
      again[#again + 1], again[#again + 2] = score_of_retry(items[i + 1]), items[i]
      bytes = bytes + #items[i]
    end
    return how_many, bytes
  end, slot.largest)
  redis.call('ZREMRANGEBYRANK', slot.retry, 0, moved - 1)
  count(slot.stats, 'merged', moved - zadd(slot.store, 'NX', again))
  return moved
end

-- Puts the messages that other claims hold as well from `sealed` back into the store, with the scores
-- that they had. Returns their number and bytes.
local function put_back(store, sealed, others)
  local back, bytes = 0, 0
  for _, other in ipairs(others) do
    local twins = redis.call('ZINTER', 2, sealed, other)
    for i = 1, #twins, UNPACKABLE do
      local last = math.min(i + UNPACKABLE - 1, #twins)
      local scored = {}
      for k, score in ipairs(redis.call('ZMSCORE', sealed, unpack(twins, i, last))) do
        scored[2 * k - 1], scored[2 * k] = score, twins[i + k - 1]
        bytes = bytes + #twins[i + k - 1]
      end
      redis.call('ZREM', sealed, unpack(twins, i, last))
      redis.call('ZADD', store, 'NX', unpack(scored))
    end
    back = back + #twins
  end
  return back, bytes
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
-- others: the keys of the claims whose messages are passed over. alone: whether the caller has nothing else in
-- progress; it gets suspects of the last level, which others pass over. Takes fewer messages if they are large. Returns
-- their number.
local function take_due(slot, claim, part, others, until_ms, limit, descending, alone)
  local store, looked_at = slot.store, 0
  local claims = math.max(1, #others)
  local enough_bytes = math.max(BYTES_AT_LEAST, math.floor(BYTES_A_CLAIM * math.min(1, 2 / claims)))
  limit = math.min(limit, math.max(TAKEN_AT_LEAST, math.floor(COMPARED_AT_MOST / claims)))
  local looked_at_most =
    math.min(LOOKED_AT_MOST, math.max(limit, math.floor(PASSED_OVER_AT_MOST / claims)))

  -- Moves the messages of a range in delivery order. Returns the number of those that stay moved, and the bytes of
  -- the others.
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
    local back, bytes = put_back(store, target, others)
    local moved = how_many - back
    if target == part and moved > 0 then
      redis.call('ZUNIONSTORE', claim, 2, claim, part)
      redis.call('UNLINK', part)
    end
    return moved, bytes
  end

  -- Returns how many messages from a rank on have `enough` bytes, and how many bytes these have.
  local function fitting(rank, available, enough)
    if limit * slot.largest <= enough_bytes then return available, 0 end -- whichever are taken
    return how_many_fit(available, enough, slot.largest, function(done, how_many)
      local first, last = rank + done, rank + done + how_many - 1
      if descending then return redis.call('ZRANGE', store, first, last, 'REV') end
      return redis.call('ZRANGE', store, first, last)
    end)
  end

  -- Takes up to `wanted` of the `available` messages from a rank on. So many fit, and `spare` bytes more. A message
  -- that other claims hold makes room for others behind it. However many bytes are passed over, it goes on until it
  -- has taken one: the next claim would pass over the same.
  local function take(rank, available, wanted, spare)
    local past, taken, passed_over = rank + available, 0, 0
    local fit = wanted
    while taken < wanted and rank < past and looked_at < looked_at_most
      and (taken == 0 or passed_over < enough_bytes and fit > 0) do
      local how_many = math.min(math.max(1, fit), wanted - taken, past - rank, looked_at_most - looked_at)
      local moved, bytes = move(rank, how_many)
      looked_at, taken, passed_over = looked_at + how_many, taken + moved, passed_over + bytes
      rank, past, spare = rank + how_many - moved, past - moved, spare + bytes
      if taken < wanted and rank < past then
        fit, bytes = 0, 0
        if spare > 0 or taken == 0 then
          fit, bytes = fitting(rank, math.min(wanted - taken, past - rank), math.max(1, spare))
        end
        spare = spare - bytes
      end
    end
    return taken
  end

  local retries = redis.call('ZCOUNT', store, '-inf', HIGHEST_RETRY)
  local firsts = redis.call('ZCOUNT', store, '(' .. HIGHEST_RETRY, descending and '+inf' or text_of(until_ms))
  -- Takes suspects of one level. Returns their number, and that of all suspects.
  local function take_suspects()
    local past = 0
    for level = ALONE, 1, -1 do
      local upto = redis.call('ZCOUNT', store, '-inf', above_level(level))
      if upto > past and (alone or level < ALONE) then
        local rank = descending and firsts + retries - upto or past
        local most = math.min(limit, CLAIMED_WITH[level], upto - past)
        local fit, bytes = fitting(rank, most, enough_bytes)
        local taken = take(rank, upto - past, fit, enough_bytes - bytes)
        if taken > 0 then return taken, upto end
      end
      past = upto
    end
    return 0, past
  end

  local first_rank = 0 -- of all that is not suspect
  if retries > 0 and tonumber(redis.call('ZRANGE', store, 0, 0, 'WITHSCORES')[2]) < 0 then
    local taken, suspects = take_suspects()
    if taken > 0 then return taken end
    retries = retries - suspects
    if not descending then first_rank = suspects end
  end
  local lead, last = retries, firsts
  if descending then lead, last = firsts, retries end
  local kept_for_last = math.min(last, math.max(1, math.floor(limit / 8)))
  -- With a limit of 1, retries and first deliveries take turns. The count of messages taken so far
  -- decides, because a slot may see only odd or only even batch numbers.
  if limit == 1 and lead > 0 and turns_taken(slot.stats) % 2 == 0 then
    kept_for_last = 0
  end
  local enough_for_lead = kept_for_last > 0 and enough_bytes * 7 / 8 or enough_bytes
  local of_lead, bytes = fitting(first_rank, math.min(lead, limit - kept_for_last), enough_for_lead)
  if of_lead == lead then
    local of_last, more = fitting(first_rank + lead, math.min(last, limit - lead), enough_bytes - bytes)
    return take(first_rank, lead + last, lead + of_last, enough_bytes - bytes - more)
  end
  local taken = take(first_rank, lead, of_lead, enough_for_lead - bytes)
  local of_last, more = fitting(first_rank + lead - taken, math.min(last, limit - taken), enough_bytes - bytes)
  taken = taken + take(first_rank + lead - taken, last, of_last, enough_bytes - bytes - more)
  -- If other claims still hold all messages whose turn it is, take the others: without a message
  -- taken, the turn would never change.
  if limit == 1 and taken == 0 then taken = take(first_rank, lead, 1, enough_bytes) end
  return taken
end
