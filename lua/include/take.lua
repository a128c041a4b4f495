-- Takes messages of a slot (slot.lua) for a new claim.
-- Defines: due_retries, free_stamp, take_due
--- include counters
--- include fractions
--- include numbers
--- include records
--- include retry_queue
--- include zadd
local SCANNED_AT_MOST = 4096
local HIGHEST_RETRY = 16

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

-- Returns the current second, or the next one that no other claim uses, because a commit removes
-- all messages of its claim's stamp.
local function free_stamp(prepare, records, now)
  local used, stamp = {}, math.floor(now / 1000)
  for _, record in ipairs(records) do used[record.stamp] = true end
  while used[stamp] or redis.call('ZCOUNT', prepare, claim_range(stamp)) > 0 do
    stamp = stamp + 1
  end
  return stamp
end

-- Returns `how_many` entries of the store with their scores, from a rank in delivery order.
local function range(store, descending, rank, how_many)
  local command = descending and 'ZREVRANGE' or 'ZRANGE'
  return redis.call(command, store, rank, rank + how_many - 1, 'WITHSCORES')
end

-- Removes the entries that range returns.
local function remove(store, descending, rank, how_many)
  if descending then
    redis.call('ZREMRANGEBYRANK', store, -rank - how_many, -rank - 1)
  else
    redis.call('ZREMRANGEBYRANK', store, rank, rank + how_many - 1)
  end
end

-- Returns pairs of PrepareQueue score and content for ZADD; ranks continue from `rank`. The last
-- item comes first: while a sorted set is small, ZADD is fastest for entries that go before all
-- others.
local function prepared(items, base, rank, max_retries, retried)
  local pairs_, n, first_delivery = {}, #items, text_of(base + max_retries)
  for i = 1, n, 2 do
    local at = n - i
    local whole = retried and text_of(base + items[at + 1] - 1) or first_delivery
    pairs_[i] = whole .. FRACTIONS[rank + (at + 1) / 2]
    pairs_[i + 1] = items[at]
  end
  return pairs_
end

-- Returns the popped items that this claim may take. Puts those that another claim still holds back
-- into the store with their scores, because moving them would take them out of that claim.
local function without_conflicts(slot, items, base)
  local contents, mine, others = {}, {}, {}
  for i = 1, #items, 2 do contents[#contents + 1] = items[i] end
  for k, score in ipairs(redis.call('ZMSCORE', slot.prepare, unpack(contents))) do
    local at, target = 2 * k - 1, mine
    if score and (tonumber(score) < base or tonumber(score) >= base + 1000) then target = others end
    target[#target + 1], target[#target + 2] = items[at], items[at + 1]
  end
  local back = {}
  for i = 1, #others, 2 do back[i], back[i + 1] = others[i + 1], others[i] end
  zadd(slot.store, 'NX', back)
  return mine
end

-- Pops up to `limit` due messages into the PrepareQueue. Returns, in delivery order, the contents,
-- the scores, and the retries left; the last list is empty if all are first deliveries.
local function take_due(slot, stamp, until_ms, limit, descending, max_retries)
  local store, prepare = slot.store, slot.prepare
  local base, scanned = stamp * 1000, 0
  local contents, scores, left = {}, {}, {}

  local function seal(items, rank, retried)
    local entries = prepared(items, base, rank, max_retries, retried)
    local added = redis.call('ZADD', prepare, 'NX', unpack(entries))
    if added == #items / 2 then return items end
    local mine = without_conflicts(slot, items, base)
    if #mine > 0 then
      redis.call('ZADD', prepare, unpack(prepared(mine, base, rank, max_retries, retried)))
    end
    return mine
  end

  local function collect(mine, retried)
    local n = #contents
    for i = 1, #mine, 2 do
      n = n + 1
      contents[n], scores[n] = mine[i], mine[i + 1]
      if retried then left[n] = mine[i + 1] - 1 end
    end
  end

  -- Takes up to `wanted` of the `available` entries from `rank` on in delivery order. All of them
  -- are retries, or all are first deliveries.
  local function take(rank, available, wanted, retried)
    local past, taken = rank + available, 0
    while taken < wanted and rank < past and scanned < SCANNED_AT_MOST do
      local n = math.min(wanted - taken, past - rank, SCANNED_AT_MOST - scanned)
      local items = range(store, descending, rank, n)
      remove(store, descending, rank, n)
      local mine = seal(items, #contents, retried)
      collect(mine, retried)
      scanned, taken = scanned + n, taken + #mine / 2
      rank, past = rank + n - #mine / 2, past - #mine / 2
    end
    return taken
  end

  local retries = redis.call('ZCOUNT', store, '-inf', HIGHEST_RETRY)
  local firsts = redis.call('ZCOUNT', store, '(' .. HIGHEST_RETRY, descending and '+inf' or text_of(until_ms))
  local lead, last = retries, firsts
  if descending then lead, last = firsts, retries end
  local kept_for_last = math.min(last, math.max(1, math.floor(limit / 8)))
  -- With a limit of 1, retries and first deliveries take turns. The count of claimed messages
  -- decides, because a slot may see only odd or only even batch numbers.
  if limit == 1 and lead > 0 and (redis.call('HGET', slot.stats, 'claimed') or 0) % 2 == 0 then
    kept_for_last = 0
  end
  local taken = take(0, lead, math.min(lead, limit - kept_for_last), not descending)
  taken = taken + take(lead - taken, last, math.min(last, limit - taken), descending)
  -- If other claims still hold all messages whose turn it is, take the others: without a message
  -- taken, the turn would never change.
  if limit == 1 and taken == 0 then take(0, lead, 1, not descending) end
  if next(left) then
    for i = 1, #contents do left[i] = left[i] or max_retries end
  end
  return contents, scores, left
end
