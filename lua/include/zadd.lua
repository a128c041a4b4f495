-- Adding to a sorted set more than one call takes.
-- Defines: zadd, UNPACKABLE
local UNPACKABLE = 2048 -- messages in one variadic call: two values each, of the 7999 unpack takes

-- condition: NX, XX, GT or LT; pairs_: score, content, score, content, ... Returns how many were new.
local function zadd(key, condition, pairs_)
  local added = 0
  for i = 1, #pairs_, 2 * UNPACKABLE do
    local last = math.min(i + 2 * UNPACKABLE - 1, #pairs_)
    added = added + redis.call('ZADD', key, condition, unpack(pairs_, i, last))
  end
  return added
end
