-- Ends the leases of all claims that a consumer holds in one slot: its own replay still reads
-- them, the claim of anybody else gives them back and takes them.
-- KEYS: 1 claims, 2 consumers
-- ARGV: 1 consumer, 2 run
-- Returns how many claims.
-- Errors: RMQ_SUPERSEDED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: transient
local claims, consumers = KEYS[1], KEYS[2]
local consumer, run = ARGV[1], tonumber(ARGV[2])
local NO_LEASE, EVERY_BATCH = 0, 0

--- include deadlines

return set_deadlines(claims, consumers, consumer, run, NO_LEASE, EVERY_BATCH)
