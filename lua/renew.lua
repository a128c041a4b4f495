-- Puts off the deadlines of all claims that a consumer holds in one slot, whatever run made them.
-- KEYS: 1 claims, 2 consumers
-- ARGV: 1 consumer, 2 run, 3 lease in ms
-- Returns how many claims.
-- Errors: RMQ_SUPERSEDED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
local claims, consumers = KEYS[1], KEYS[2]
local consumer, run, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

--- include time
--- include types
--- include records
--- include headers
--- include deadlines

return set_deadlines()
