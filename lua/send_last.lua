-- Stores Priority and FixedTime messages of one slot with the scores given; of equal contents the
-- last score wins.
-- KEYS: for each group 1 store, 2 retry, 3 stats
-- ARGV: pairs of 1 score, 2 content
-- Returns {new, merged}, counted in the first group.
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, 7800 values a call to Redis.

--- include types
--- include store

return wrong_group_type(1) or store_in_groups(ARGV, nil, 1)
