-- Stores messages, for the scripts that send or publish. The keys of the groups begin at the number
-- `from`: store, retry and stats of each group.
-- Defines: wrong_group_type, store_in_groups
--- include counters
--- include due_since
--- include types

-- Returns the contents of pairs of score and content.
local function contents_of(...)
  local pairs_, contents = {...}, {}
  for i = 2, #pairs_, 2 do contents[i / 2] = pairs_[i] end
  return contents
end

-- Stores pairs of score and content in one group. Returns the number of new messages there. Copies
-- that wait in the retry queue are removed.
local function store_in_group(store, retry, condition, ...)
  local new
  if condition then
    new = redis.call('ZADD', store, condition, ...)
  else
    new = redis.call('ZADD', store, ...)
  end
  -- Not before ZADD: a full Redis 6.2 would store the messages once memory was freed.
  if redis.call('EXISTS', retry) == 1 then
    new = new - redis.call('ZREM', retry, unpack(contents_of(...)))
  end
  return new
end

local function wrong_group_type(keys, from)
  for k = from, #keys, 3 do
    local wrong = wrong_type(keys[k], 'zset', keys[k + 1], 'zset', keys[k + 2], 'hash')
    if wrong then return wrong end
  end
end

-- Stores `sent` messages, at most 3900, in every group whose keys the caller named. Returns the
-- counts of the first group. values: returns score, content, score, content, ... lowest: a lower
-- bound of the scores, if they are times that may have passed; else nil.
local function store_in_groups(keys, from, condition, sent, values, lowest, now)
  local counts
  for k = from, #keys, 3 do
    local change = lowest and due_since_change(keys[k], keys[k + 2], lowest, now) or 0
    local new = store_in_group(keys[k], keys[k + 1], condition, values())
    count(keys[k + 2], 'dueSince', change)
    count(keys[k + 2], 'accepted', sent)
    count(keys[k + 2], 'merged', sent - new)
    counts = counts or {new, sent - new}
  end
  return counts
end
