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
--- include delay

return wrong_group_type(1) or store_in_groups(due_after(ARGV, now_ms()), 'NX', 1)
