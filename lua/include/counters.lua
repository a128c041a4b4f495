-- The counters of a slot.
-- Defines: count, arrivals
local function count(stats, counter, by)
  if by ~= 0 then redis.call('HINCRBY', stats, counter, by) end
end

-- Returns a number that grows with every message that comes into the store, except out of the retry
-- queue.
local function arrivals(stats)
  local counted = redis.call('HMGET', stats, 'accepted', 'rolledBack')
  return (counted[1] or 0) + (counted[2] or 0)
end
