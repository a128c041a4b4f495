-- The counters of a slot.
-- Defines: count
local function count(stats, counter, by)
  if by ~= 0 then redis.call('HINCRBY', stats, counter, by) end
end
