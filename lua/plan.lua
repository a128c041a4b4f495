-- Writes the mark of a batch's plan into one slot, before the batch's claims are made. Redis may
-- lose writes (in a restart or failover, or because the topic was deleted and created again). So
-- claim.lua makes no claim if the mark of its plan is gone, or is older than the last such event.
-- KEYS: 1 consumers, 2 stats, 3 store, 4 retry
-- ARGV: 1 consumer, 2 run, 3 mark: a random text without spaces
-- Returns 1; 0 if the topic was deleted meanwhile: then nothing is written.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: transient
local consumers, stats, store, retry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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
if is_deserted(header, consumers, stats, store, retry) then return 0 end
write_though_full(consumers)
header.run, header.seen = run, now_ms()
header.mark, header.server = mark, server_id()
write_header(consumers, header)
return 1
