-- Ends the leases of all claims that a consumer holds in one slot. A replay of the consumer still
-- reads them, until whoever plans the next batch of the slot gives them back.
-- KEYS: 1 claims, 2 consumers, 3 store
-- ARGV: 1 consumer, 2 run
-- Returns the number of claims.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: transient
local claims, consumers, store = KEYS[1], KEYS[2], KEYS[3]
local consumer, run = ARGV[1], tonumber(ARGV[2])
local NO_LEASE, EVERY_BATCH = 0, 0

--- include deadlines
--- include wake

local released = set_deadlines(claims, consumers, consumer, run, NO_LEASE, EVERY_BATCH)
wake(store, 0)
return released
