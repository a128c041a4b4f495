-- Stores RangeMerge messages of one slot, each due its timeRange from now; of equal contents the
-- first due time stays.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: pairs of 1 timeRange in ms, 2 content
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, 7800 values a call to Redis.

--- include time
--- include types
--- include store

local now, delayed = now_ms(), {}
local time_range, due
for i = 1, #ARGV, 2 do
  if ARGV[i] ~= time_range then
    time_range = ARGV[i]
    due = string.format('%.0f', now + time_range)
  end
  delayed[i], delayed[i + 1] = due, ARGV[i + 1]
end
return store_in_groups(delayed, 'NX')
