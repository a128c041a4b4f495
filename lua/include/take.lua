-- Popping for a new claim. For claim.lua alone, which declares what is used here.
local SCANNED_AT_MOST = 4096
local HIGHEST_RETRY = 16

-- Moves retries whose wait is over into the store; a copy that was sent again wins.
local function due_retries(until_ms)
  local past = '(' .. text_of(math.floor(until_ms / 1000) * 1000 + 1000)
  local items = redis.call('ZRANGEBYSCORE', retry, '-inf', past, 'WITHSCORES', 'LIMIT', 0, 1000)
  if #items == 0 then return 0 end
  redis.call('ZREMRANGEBYRANK', retry, 0, #items / 2 - 1)
  local again = {}
  for i = 1, #items, 2 do
    again[i], again[i + 1] = items[i + 1] % 1000, items[i]
  end
  count('merged', #again / 2 - zadd(store, 'NX', again))
  return #again / 2
end

-- The current second, or the next one that no other claim uses: committing a claim removes the
-- messages of its stamp.
local function free_stamp(records, now)
  local used, stamp = {}, math.floor(now / 1000)
  for _, record in ipairs(records) do used[record.stamp] = true end
  while used[stamp] or redis.call('ZCOUNT', prepare, claim_range(stamp)) > 0 do
    stamp = stamp + 1
  end
  return stamp
end

-- `how_many` entries of the store from a rank in delivery order, with scores; and their removal.
local function range(rank, how_many)
  local command = descending and 'ZREVRANGE' or 'ZRANGE'
  return redis.call(command, store, rank, rank + how_many - 1, 'WITHSCORES')
end

local function remove(rank, how_many)
  if descending then
    redis.call('ZREMRANGEBYRANK', store, -rank - how_many, -rank - 1)
  else
    redis.call('ZREMRANGEBYRANK', store, rank, rank + how_many - 1)
  end
end

-- The prepare scores of popped items, as pairs for ZADD; ranks go on from `rank`.
local function prepared(items, base, rank)
  local pairs_ = {}
  for i = 1, #items, 2 do
    local score = items[i + 1]
    local left = max_retries
    if #score <= 2 and tonumber(score) <= HIGHEST_RETRY then left = score - 1 end
    pairs_[i] = base + left + (rank + (i - 1) / 2) / 2048
    pairs_[i + 1] = items[i]
  end
  return pairs_
end

-- Splits popped items into those this claim may take and, back into the store with the scores they
-- had, those that another claim still holds: moving these would take them out of that claim.
local function without_conflicts(items, base)
  local contents, mine, others = {}, {}, {}
  for i = 1, #items, 2 do contents[#contents + 1] = items[i] end
  for k, score in ipairs(redis.call('ZMSCORE', prepare, unpack(contents))) do
    local at, target = 2 * k - 1, mine
    if score and (tonumber(score) < base or tonumber(score) >= base + 1000) then target = others end
    target[#target + 1], target[#target + 2] = items[at], items[at + 1]
  end
  local back = {}
  for i = 1, #others, 2 do back[i], back[i + 1] = others[i + 1], others[i] end
  zadd(store, 'NX', back)
  return mine
end

-- Pops up to `limit` due messages into the PrepareQueue. Returns content, score, ... in order.
local function take_due(stamp, until_ms)
  local base, popped, scanned = stamp * 1000, nil, 0

  local function seal(items, rank)
    local added = redis.call('ZADD', prepare, 'NX', unpack(prepared(items, base, rank)))
    if added == #items / 2 then return items end
    local mine = without_conflicts(items, base)
    if #mine > 0 then redis.call('ZADD', prepare, unpack(prepared(mine, base, rank))) end
    return mine
  end

  -- Takes up to `wanted` of the `available` entries that begin at `rank` in delivery order.
  local function take(rank, available, wanted)
    local before, past = popped and #popped / 2 or 0, rank + available
    local taken = 0
    while taken < wanted and rank < past and scanned < SCANNED_AT_MOST do
      local n = math.min(wanted - taken, past - rank, SCANNED_AT_MOST - scanned)
      local items = range(rank, n)
      remove(rank, n)
      local mine = seal(items, before + taken)
      scanned, taken = scanned + n, taken + #mine / 2
      rank, past = rank + n - #mine / 2, past - #mine / 2
      if not popped then
        popped = mine
      else
        for i = 1, #mine do popped[#popped + 1] = mine[i] end
      end
    end
    return taken
  end

  local retries = redis.call('ZCOUNT', store, '-inf', HIGHEST_RETRY)
  local firsts = redis.call('ZCOUNT', store, '(' .. HIGHEST_RETRY, descending and '+inf' or text_of(until_ms))
  local lead, last = retries, firsts
  if descending then lead, last = firsts, retries end
  local kept_for_last = math.min(last, math.max(1, math.floor(limit / 8)))
  -- By turns: by what the slot has given so far, since seq may come to it with one parity only.
  if limit == 1 and lead > 0 and (redis.call('HGET', stats, 'claimed') or 0) % 2 == 0 then
    kept_for_last = 0
  end
  local taken = take(0, lead, math.min(lead, limit - kept_for_last))
  taken = taken + take(lead - taken, last, math.min(last, limit - taken))
  -- All whose turn it was are in flight: the turn passes only with a message taken.
  if limit == 1 and taken == 0 then take(0, lead, 1) end
  return popped or {}
end

-- The scores the messages had in the store, by rank: what later reads of the claim return.
local function write_first_scores(field, items)
  local scores = {}
  for i = 2, #items, 2 do scores[i / 2] = items[i] end
  redis.call('HSET', first, field, cmsgpack.pack(scores))
end
