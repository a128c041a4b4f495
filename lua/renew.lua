-- Renews the leases of the claims that a consumer holds in one slot, whichever run made them.
-- KEYS: 1 claims, 2 consumers
-- ARGV: 1 consumer, 2 run, 3 lease in ms, 4 since: the batch before the first one
-- Returns the number of claims.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: transient
local claims, consumers = KEYS[1], KEYS[2]
local consumer, run = ARGV[1], tonumber(ARGV[2])
local lease_ms, since = tonumber(ARGV[3]), tonumber(ARGV[4])

--- include deadlines

return set_deadlines(claims, consumers, consumer, run, lease_ms, since)
