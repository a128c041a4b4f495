-- Tells how much waits in a group of a slot, as the limits of a topic count it.
-- KEYS: 1 store, 2 retry, 3 stats, 4 bodies
-- ARGV: none
-- Returns {messages, bytes}.
-- Errors: RMQ_WRONGTYPE
-- Bound: 64 messages of each queue; a MiB of contents, or 4 messages more if these are larger.
-- Effect: reads
--- include groups
--- include limits

local wrong = wrong_group_type(KEYS, 1)
if wrong then return wrong end
return {limits_of('').waiting_in(KEYS[1], KEYS[2], KEYS[3], KEYS[4])}
