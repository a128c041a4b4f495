-- Adds more messages to a sorted set than one call takes.
-- Defines: zadd, UNPACKABLE
local UNPACKABLE = 2048 -- messages in one call: two values each, and unpack takes 7999 values

-- condition: NX, XX, GT or LT; pairs_: score, content, ... Returns the number of new messages.
local function zadd(key, condition, pairs_)
  local added = 0
  for i = 1, #pairs_, 2 * UNPACKABLE do
    local last = math.min(i + 2 * UNPACKABLE - 1, #pairs_)
    added = added + redis.call('ZADD', key, condition, unpack(pairs_, i, last))
  end
  return added
end
