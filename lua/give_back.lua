-- Gives back every message that a consumer holds in one slot, as if its leases had expired, and
-- bars older runs from the slot. For a consumer in plain Python: when it starts, before it takes
-- its next batch, and when it ends. Not for a query, whose batch must be replayed.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 consumers, 8 stats
-- ARGV: 1 consumer, 2 run, 3 seq: its last batch, whose late claims are refused, 4 maxRetries,
--       5 backoff: waits in ms, separated by commas
-- Returns {messages given back, 1 if another call would do more, else 0}.
-- Errors: RMQ_SUPERSEDED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 4096 messages; the records of the slot.
-- Effect: moves
local consumer, run, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local MESSAGES_AT_MOST = 4096

--- include enter
--- include full_server
--- include giveback
--- include headers
--- include records
--- include retry_queue
--- include slot
--- include time

local slot, terms = slot_of(KEYS), retry_terms(ARGV[4], ARGV[5])
local refused, header, records =
  enter(wrong_slot_type(slot), slot.claims, slot.consumers, consumer, run)
if refused then return refused end

write_though_full(slot.claims)
local now, given_back, more = now_ms(), 0, 0
for _, record in ipairs(records) do
  if record.consumer == consumer then
    if held_messages(slot.prepare, record) == 0 then
      forget_record(slot.claims, slot.first, record)
    elseif given_back + record.count <= MESSAGES_AT_MOST then
      given_back = given_back + give_back_claim(slot, terms, record, now)
    else
      more = 1
    end
  end
end
header.run, header.seen = run, now
-- The consumer is no longer at work here.
if more == 0 then header.settled = math.max(header.settled, header.last_seq, seq) end
write_header(slot.consumers, header)
return {given_back, more}
