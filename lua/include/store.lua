-- Storing what was sent, for the scripts that send or publish. Include types above it.
local VALUES_A_CALL = 7800 -- of the 7999 that unpack takes; pairs of score and content

local function contents_of(pairs_, from, to)
  local contents = {}
  for i = from + 1, to, 2 do contents[#contents + 1] = pairs_[i] end
  return contents
end

-- Stores pairs of score and content in one group. A copy that waits in the retry queue gives way.
local function store_in_group(pairs_, condition, store, retry, stats)
  local sent, new = #pairs_ / 2, 0
  local waiting = redis.call('EXISTS', retry) == 1
  for i = 1, #pairs_, VALUES_A_CALL do
    local last = math.min(i + VALUES_A_CALL - 1, #pairs_)
    if condition then
      new = new + redis.call('ZADD', store, condition, unpack(pairs_, i, last))
    else
      new = new + redis.call('ZADD', store, unpack(pairs_, i, last))
    end
    -- Only now: a full Redis 6.2 would go on storing once something was freed.
    if waiting then new = new - redis.call('ZREM', retry, unpack(contents_of(pairs_, i, last))) end
  end
  redis.call('HINCRBY', stats, 'accepted', sent)
  if new < sent then redis.call('HINCRBY', stats, 'merged', sent - new) end
  return {new, sent - new}
end

-- The groups' keys are those from the number `from` on: store, retry, stats of each.
local function wrong_group_type(from)
  for k = from, #KEYS, 3 do
    local wrong = wrong_type(KEYS[k], 'zset', KEYS[k + 1], 'zset', KEYS[k + 2], 'hash')
    if wrong then return wrong end
  end
end

-- Stores in every group whose keys the caller named; returns the counts of the first.
local function store_in_groups(pairs_, condition, from)
  local counts
  for k = from, #KEYS, 3 do
    local stored = store_in_group(pairs_, condition, KEYS[k], KEYS[k + 1], KEYS[k + 2])
    counts = counts or stored
  end
  return counts
end
