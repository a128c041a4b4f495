-- Lists the claims of a batch that an earlier run made in one slot, renews their leases, and bars
-- all older runs from the slot. The caller then reads each claim again (claim.lua with replayOnly),
-- or does not if the sink already has the batch.
-- KEYS: 1 claims, 2 consumers, 3 stats
-- ARGV: 1 consumer, 2 run, 3 seqFrom (exclusive), 4 seqTo (inclusive), 5 lease in ms
-- Returns {seq, ordinal, messages claimed, ...}, in no order. Writes nothing if the topic was deleted meanwhile.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: moves
local claims, consumers, stats = KEYS[1], KEYS[2], KEYS[3]
local consumer, run = ARGV[1], tonumber(ARGV[2])
local seq_from, seq_to, lease_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

--- include enter
--- include full_server
--- include headers
--- include records
--- include time
--- include types

local refused, header, records =
  enter(wrong_type(claims, 'hash', consumers, 'hash'), claims, consumers, consumer, run)
if refused then return refused end
if is_deserted(header, consumers, stats) then return {} end

write_though_full(claims)
local now, listed = now_ms(), {}
header.run, header.seen = run, now
write_header(consumers, header)
for _, record in ipairs(records) do
  if record.consumer == consumer and record.seq > seq_from and record.seq <= seq_to then
    record.deadline, record.replayed = now + lease_ms, run
    write_record(claims, record)
    listed[#listed + 1] = record.seq
    listed[#listed + 1] = record.ordinal
    listed[#listed + 1] = record.sealed
  end
end
return listed
