-- Gives back the claims of one slot whose lease has expired, and forgets consumers that hold
-- nothing and were not seen for a long time. For people and jobs; a query never calls it.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 consumers, 8 stats
-- ARGV: 1 maxRetries, 2 backoff: waits in ms, separated by commas, 3 forget consumers not seen for
--       this long, in ms
-- Returns {messages given back, consumers forgotten, 1 if another call would do more, else 0}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 4096 messages; 1000 consumers.
-- Effect: moves
local forget_ms = tonumber(ARGV[3])
local MESSAGES_AT_MOST, CONSUMERS_AT_MOST = 4096, 1000

--- include giveback
--- include headers
--- include records
--- include retry_queue
--- include slot
--- include time

local slot, terms = slot_of(KEYS), retry_terms(ARGV[1], ARGV[2])
local wrong = wrong_slot_type(slot)
if wrong then return wrong end
local records, version = read_records(slot.claims)
if not records then return version end
local now = now_ms()
local given_back = reap(slot, terms, records, now, MESSAGES_AT_MOST, function() return false end)

local holds, empty, more = {}, {}, 0
for _, record in ipairs(records) do
  if held_messages(slot.prepare, record) > 0 then
    holds[record.consumer] = true
    if record.deadline <= now then more = 1 end
  elseif redis.call('HEXISTS', slot.claims, record.field) == 1 then
    empty[#empty + 1] = record
  end
end
local forgotten = {}
for _, consumer in ipairs(redis.call('HKEYS', slot.consumers)) do
  if is_consumer(consumer) and not holds[consumer]
    and read_header(slot.consumers, consumer).seen <= now - forget_ms then
    if #forgotten == CONSUMERS_AT_MOST then
      more = 1
      break
    end
    forgotten[#forgotten + 1], forgotten[consumer] = consumer, true
  end
end
for _, record in ipairs(empty) do
  if forgotten[record.consumer] then forget_record(slot.claims, slot.first, record) end
end
if #forgotten > 0 then redis.call('HDEL', slot.consumers, unpack(forgotten)) end
return {given_back, #forgotten, more}
