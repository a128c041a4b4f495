-- Leaves the mark of a batch's plan in one slot, before the batch's claims are made. Redis may fall
-- back to an earlier state (a restart, a failover, a topic made anew); claims of a plan whose mark
-- is gone, or was left in another life of the server, are then not made anew (claim.lua).
-- KEYS: 1 consumers
-- ARGV: 1 consumer, 2 run, 3 mark: a random text without spaces
-- Returns 1.
-- Errors: RMQ_SUPERSEDED, RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: transient
local consumers = KEYS[1]
local consumer, run, mark = ARGV[1], tonumber(ARGV[2]), ARGV[3]

--- include full_server
--- include headers
--- include server
--- include time
--- include types

local wrong = wrong_type(consumers, 'hash')
if wrong then return wrong end
local header = read_header(consumers, consumer)
local refused = superseded(header, run)
if refused then return refused end
write_though_full(consumers)
header.run, header.seen = run, now_ms()
header.mark, header.server = mark, server_id()
write_header(consumers, header)
return 1
