-- Ends the work of a consumer in plain Python in one slot, and bars older runs from it: when it starts,
-- before it takes its next batch, and when it ends. Its claims can then be given back (give_back.lua)
-- as if their leases had expired. Not for a query, whose batch must be replayed.
-- KEYS: 1 claims, 2 consumers, 3 stats
-- ARGV: 1 consumer, 2 run, 3 seq: its last batch, whose late claims are refused, 4 whether it has failed 0/1:
--       any of its messages may be why, as of those of older runs
-- Returns the names of its claims that hold messages. Those without messages are forgotten.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: moves
local claims, consumers, stats = KEYS[1], KEYS[2], KEYS[3]
local consumer, run, seq, has_failed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'

--- include enter
--- include full_server
--- include headers
--- include records
--- include time
--- include types

local refused, header, records =
  enter(wrong_type(claims, 'hash', consumers, 'hash'), claims, consumers, consumer, run)
if refused then return refused end

write_though_full(claims)
local names = {}
for _, record in ipairs(records) do
  if record.consumer == consumer and record.held == 0 then
    redis.call('HDEL', claims, record.name)
  elseif record.consumer == consumer then
    names[#names + 1] = record.name
    record.deadline = (has_failed or record.run < run) and LOST or LONG_PAST
    write_record(claims, record)
  end
end
header.run, header.seen = run, now_ms()
header.settled = math.max(header.settled, header.last_seq, seq)
if seq == 0 or not is_deserted(header, consumers, stats) then write_header(consumers, header) end
return names
